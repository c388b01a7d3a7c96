//! `criswitch.admin.v1`, generated from `proto/criswitch/admin/v1/admin.proto`.
//!
//! The commands print these messages as JSON.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

include!("../../proto/generated/criswitch.admin.v1.rs");
