//! The CRI's messages and services, generated from `proto/runtime/v1/api.proto`.
//!
//! `check --probe`, the tests and the simulated runtime use these types. A routed call is never decoded into them.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

include!("../../../../proto/generated/runtime.v1.rs");
