//! A compressed reply, although the request did not allow compression. criswitch must read the replies to this RPC, so
//! it cannot forward the reply unread.

use super::{Reply, raw};

pub fn compressed(rpc: &str) -> Option<Reply> {
    if rpc != "ListContainers" {
        return None;
    }
    let mut reply = raw(&[1, 0, 0, 0, 2, 0x1f, 0x8b][..], "0");
    let encoding = http::HeaderValue::from_static("gzip");
    reply.headers_mut().insert("grpc-encoding", encoding);
    Some(reply)
}
