//! Facts about the CRI: its encoding, and its RPCs as rows of a table. Does no I/O, and knows nothing of criswitch's
//! configuration and backends.
//!
//! - [`codec`]: bytes only: protobuf fields, gRPC's frames and headers, HTTP/2's authority; generated types for the
//!   probe and tests
//! - [`error_text`], [`redact`]: texts of errors, never long and without credentials
//! - [`facts`]: what the replies of a runtime show
//! - [`rpc`]: `table`: a row for each RPC; `describe`: the rows in words, for `criswitch routes` and docs/rpcs.md; the
//!   CRI's field numbers by name

pub mod codec;
pub mod error_text;
pub mod facts;
pub mod redact;
pub mod rpc;
