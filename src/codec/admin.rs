//! `criswitch.admin.v1`, generated from `proto/criswitch/admin/v1/admin.proto`.
//!
//! The commands print these messages as JSON.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

tonic::include_proto!("criswitch.admin.v1");
