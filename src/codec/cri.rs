//! The CRI's messages and services, generated from `proto/runtime/v1/api.proto`.
//!
//! Serves `check --probe`, the tests and the simulated runtime. A routed call never becomes one of these types.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

tonic::include_proto!("runtime.v1");
