//! `criswitch.admin.v1`, generated from `proto/criswitch/admin/v1/admin.proto`: what the daemon and its commands share.
//!
//! The messages become JSON for programs as they are.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

tonic::include_proto!("criswitch.admin.v1");
