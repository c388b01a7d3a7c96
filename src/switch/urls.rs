//! URLs of backends' streaming servers, to which clients connect for `Exec`, `Attach` and `PortForward`. cri-dockerd
//! returns URLs without a scheme. For them, the kubelet uses HTTPS for `Exec` and `Attach`. cri-dockerd does not serve
//! HTTPS.

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Edit, Edited};
use tonic::Status;

use crate::backend::Backend;

/// The error text. It does not show the URL, because the path of the URL is a credential.
const INCOMPLETE: &str = "the URL of its streaming server has neither a scheme nor a host, so no client can connect; \
                          fix the address of the streaming server in the runtime's configuration";

/// Adds `http:` to the URL at `path` in `reply` if the URL begins with `//`. Returns `None` if the URL has a scheme.
///
/// # Errors
/// `Internal` if the URL has neither a scheme nor a host, or if the reply is malformed.
pub(crate) fn completed(
    backend: &Backend,
    reply: &Bytes,
    path: &[u32],
) -> Result<Option<Bytes>, Status> {
    let malformed = |fault| backend.malformed(&fault);
    let url = protobuf::string(reply, path).map_err(malformed)?;
    if has_scheme(url) {
        return Ok(None);
    }
    let host = url.strip_prefix("//").unwrap_or_default();
    if host.is_empty() || host.starts_with(['/', '?', '#', ':']) {
        return Err(backend.bad_reply(INCOMPLETE));
    }
    // A reply may repeat the field. The last URL counts, so each one becomes the last.
    let whole = Edited::of_string(&format!("http:{url}"));
    protobuf::edited(reply, path, &mut |_| Ok(Edit::Other(whole.clone()))).map_err(malformed)
}

/// Whether the text before the first `:` is a scheme (RFC 3986, section 3.1).
fn has_scheme(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| {
        let mut chars = scheme.chars();
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && chars.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}
