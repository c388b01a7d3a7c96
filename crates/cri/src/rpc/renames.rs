//! Renames the handlers in a message: backends and clients may have different names for them.

use super::fields;
use crate::codec::protobuf::{self, Edit, Editable, Edited, Path};

/// The paths to the handlers in a message from a backend, which have the backend's names.
#[derive(Debug)]
pub struct HandlerPaths {
    /// The handler of a pod: the field of the pods, then the field of the handler in a pod.
    pub pod: Option<Path>,
    /// The image specs, which have the handler that the image was pulled for.
    pub images: &'static [Path],
}

/// The limit on the handlers that are renamed at one path of a message. A list has at most this number of items.
/// Without a limit a message could grow without bounds: a new name may be far longer than the backend's name, and a
/// message may repeat a field any number of times.
pub const MOST_RENAMED: usize = 131_072;

/// Renames the handlers of the image specs at `paths` by `name`, at most [`MOST_RENAMED`] at each path. Specs without a
/// handler and specs that cannot be read stay as they are. Returns `None` if nothing changes.
pub fn specs_renamed<'n, M: Editable>(
    message: &M,
    paths: &[Path],
    name: impl Fn(&str) -> Option<&'n str>,
) -> Option<M> {
    paths.iter().fold(None, |renamed: Option<M>, path| {
        let now = renamed.as_ref().unwrap_or(message);
        let mut count = 0;
        let edited = protobuf::edited(now, path, &mut |spec| {
            let handler = protobuf::string(spec, fields::SPEC_HANDLER).unwrap_or_default();
            let other = name(handler).filter(|name| !handler.is_empty() && *name != handler);
            count += usize::from(other.is_some());
            Ok(match other {
                Some(name) if count <= MOST_RENAMED => {
                    Edit::Other(Edited::with_string(spec, fields::SPEC_HANDLER, name))
                }
                _ => Edit::Same,
            })
        });
        edited.ok().flatten().or(renamed)
    })
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::*;

    #[test]
    fn a_limited_number_of_handlers_is_renamed() {
        let spec = protobuf::with_string(&[], fields::SPEC_HANDLER, "a");
        let mut specs = BytesMut::new();
        for _ in 0..=MOST_RENAMED {
            protobuf::put_bytes(&mut specs, 1, &spec);
        }
        let specs: Bytes = specs.freeze();
        let renamed = specs_renamed(&specs, &[&[1]], |_| Some("other")).unwrap();
        let one = protobuf::with_string(&spec, fields::SPEC_HANDLER, "other");
        let longer = one.len() - spec.len();
        assert_eq!(renamed.len(), specs.len() + MOST_RENAMED * longer);
    }
}
