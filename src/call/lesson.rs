//! The facts that criswitch learns from the reply to a call. The RPC's row, the request and its target determine these
//! facts before the call is sent.

use criswitch_cri::codec::protobuf::{self, Field, Path};
use criswitch_cri::rpc::fields::{FILTER, IMAGE_STATUS_HANDLERS, IMAGE_TEXTS, image_filter};
use criswitch_cri::rpc::{Filter, Goes, HandlerPaths, Kind, List, StateChange, Then, UID_LABEL};

use crate::call::Request;
use crate::call::route::Target;
use crate::ownership::{PodNames, StartedWith};

/// The facts that criswitch learns from a successful reply.
#[derive(Clone, Debug)]
pub(crate) enum Lesson {
    /// Nothing: criswitch may forward the reply without reading it.
    Nothing,
    /// The backend has created a pod. The pod's id is at the path in the reply.
    Pod(Path, PodNames),
    /// The backend has restored a pod. In the reply, the pod's id is at the first path, and the ids of its containers
    /// are at the second path.
    Restored(Path, Path, PodNames),
    /// The backend has created a container in the pod with this id. The container's id is at the path in the reply.
    Container(Path, String),
    /// The pod or container was removed.
    Gone(Kind, String),
    /// The pod or container with this id has changed its state. The containers of a pod change with the pod.
    ChangedState(&'static [StateChange], String),
    /// The reply is a list.
    List(Listing),
    /// The reply has the file systems of the backend's images.
    Disks,
    /// The backend has the image of the request. The image's id is at the path in the reply. criswitch replaces the
    /// handlers in the reply, if any, with the names that clients use.
    Image(Path, Option<&'static HandlerPaths>),
    /// The image store of the backend has changed.
    ChangedImages,
    /// The reply has names of handlers at the paths. criswitch replaces them with the names that clients use.
    Handler(&'static HandlerPaths),
    /// The reply has a URL at the path. criswitch completes it.
    Url(Path),
}

/// The scope of a call for a list.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    /// The kind of items.
    pub list: List,
    /// Whether the call asks for all items.
    pub is_whole: bool,
    /// Whether the request asks for one pod or container by its id, or for the items of one pod. If so, only the owner
    /// may answer.
    pub names_one: bool,
    /// The id of the pod whose containers the call asks for; empty if the call names no pod.
    pub pod: String,
    /// The uid of the pod that the call asks for by a label; empty if the call names no uid.
    pub uid: String,
    /// Whether the items come in a stream of messages.
    pub is_streamed: bool,
}

impl Lesson {
    /// Whether the reply shows that the backend has created a pod or container.
    pub(crate) fn creates(&self) -> bool {
        matches!(
            self,
            Lesson::Pod(..) | Lesson::Restored(..) | Lesson::Container(..)
        )
    }

    /// The facts that criswitch learns from the reply to `request`, which goes to `target`. A pod that it creates gets
    /// `started_with`.
    pub(super) fn of(request: &Request, target: &Target, started_with: StartedWith) -> Lesson {
        let names = |config| PodNames {
            started_with,
            ..pod_names(request, config)
        };
        match (&request.row.then, target) {
            (Then::OwnPod(id, config), _) => Lesson::Pod(id, names(config)),
            (Then::OwnRestored(pod, containers, config), _) => {
                Lesson::Restored(pod, containers, names(config))
            }
            (Then::OwnContainer(path), Target::Owner(_, _, pod)) => {
                Lesson::Container(path, pod.clone())
            }
            (Then::Forget, Target::Owner(_, kind, id)) => Lesson::Gone(*kind, id.clone()),
            (Then::ChangeState(changes), Target::Owner(_, _, id)) => {
                Lesson::ChangedState(changes, id.clone())
            }
            (Then::List(list), _) => Lesson::List(Listing::of(*list, request)),
            (Then::KeepDisks, _) => Lesson::Disks,
            (Then::HaveImage(id), _) => Lesson::Image(id, Some(&IMAGE_STATUS_HANDLERS)),
            (Then::NewImage(id), _) => Lesson::Image(id, None),
            (Then::LostImage, _) => Lesson::ChangedImages,
            // The reply has handlers only in image specs, and this backend uses the same names for handlers as the
            // routing table, so there is nothing to replace.
            (Then::Rename(paths), Target::Owner(backend, ..))
                if paths.pod.is_none() && !request.live.table.renames(*backend) =>
            {
                Lesson::Nothing
            }
            (Then::Rename(paths), _) => Lesson::Handler(paths),
            (Then::CompleteUrl(path), _) => Lesson::Url(path),
            (Then::Nothing | Then::OwnContainer(_) | Then::Forget | Then::ChangeState(_), _) => {
                Lesson::Nothing
            }
        }
    }

    /// Whether criswitch must read the reply. Otherwise it may forward the reply without reading it.
    pub(crate) fn must_read(&self) -> bool {
        match self {
            Lesson::Nothing => false,
            Lesson::List(Listing {
                list, is_streamed, ..
            }) => {
                if list.is_stats() {
                    *list == List::MetricDescriptors
                } else {
                    !is_streamed
                }
            }
            _ => true,
        }
    }

    /// Whether the reply waits until the state of its backend is saved. Stats and file systems need not be saved,
    /// because criswitch can ask for them again. A URL shows nothing that is saved, so `Exec` works while the state
    /// cannot be saved.
    pub(super) fn waits_for_save(&self) -> bool {
        match self {
            Lesson::List(listing) => !listing.list.is_stats(),
            Lesson::Disks | Lesson::Url(_) => false,
            _ => true,
        }
    }
}

impl Listing {
    fn of(list: List, request: &Request) -> Listing {
        let (row, message) = (request.row, request.message());
        let filter = match &row.goes {
            Goes::All(filter, _) => filter,
            _ => &Filter::NONE,
        };
        let pod = filter
            .pod
            .map(|pod| protobuf::string(&message, pod).unwrap_or_default());
        let uid = filter
            .labels
            .and_then(|labels| protobuf::entry(&message, labels, UID_LABEL).ok()?);
        Listing {
            list,
            is_whole: asks_for_all(list, &message),
            names_one: filter.names_one(&message),
            pod: pod.unwrap_or_default().to_owned(),
            uid: uid.unwrap_or_default().to_owned(),
            is_streamed: row.streams(),
        }
    }
}

/// The row of the routing table that `request` creates a pod with. The request must still have the handler name that
/// the client sent.
pub(super) fn started_with(request: &Request, target: &Target) -> StartedWith {
    let (Goes::Handler(path), Target::Handler(handler)) = (&request.row.goes, target) else {
        return StartedWith::Unknown;
    };
    match protobuf::string(&request.message(), path) {
        Ok("") => StartedWith::DefaultRow(handler.name.clone()),
        _ => StartedWith::Row(handler.name.clone()),
    }
}

/// The names of the pod whose configuration is at the path. The names are empty if the configuration is malformed,
/// because a backend may still accept the request.
pub(crate) fn pod_names(request: &Request, config: Path) -> PodNames {
    let message = request.message();
    let config = protobuf::submessage(&message, config);
    config
        .and_then(|config| PodNames::of_config(&config))
        .unwrap_or_default()
}

/// Whether the request of a list asks for all items: it has no fields except empty filters. If a filter is split into
/// several fields, each of them must be empty. An unknown field may be a filter of a later CRI.
fn asks_for_all(list: List, request: &[u8]) -> bool {
    all_fields(request, |field| {
        let is_empty = field.bytes().is_ok_and(|filter| match list {
            // A filter for pods or containers must have no fields: even an empty state in it selects the state with
            // number 0.
            List::Images => names_no_image(filter),
            _ => filter.is_empty(),
        });
        field.number == FILTER && is_empty
    })
}

/// Whether an image filter has nothing but image specs without a name: `crictl images` sends an empty spec.
fn names_no_image(filter: &[u8]) -> bool {
    all_fields(filter, |image| {
        let spec = image.bytes().ok();
        image.number == image_filter::IMAGE
            && spec.is_some_and(|spec| all_fields(spec, is_empty_text))
    })
}

fn is_empty_text(field: &Field<'_>) -> bool {
    IMAGE_TEXTS.contains(&field.number) && field.bytes().is_ok_and(<[u8]>::is_empty)
}

fn all_fields(message: &[u8], is: impl Fn(&Field<'_>) -> bool) -> bool {
    protobuf::fields(message).all(|field| field.is_ok_and(|field| is(&field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_only_empty_filters_asks_for_all_items() {
        let (empty, filter) = (&[0x0a, 0][..], &[0x0a, 2, 0x12, 0][..]);
        let unknown = &[0x48, 1][..];
        for (parts, all) in [
            (vec![], true),
            (vec![empty], true),
            (vec![empty, empty], true),
            (vec![filter], false),
            (vec![filter, empty], false),
            (vec![empty, filter], false),
            (vec![unknown], false),
            (vec![empty, unknown], false),
            (vec![&[0x0a]], false),
        ] {
            for list in [List::Pods, List::Containers, List::Images] {
                let request = parts.concat();
                assert_eq!(asks_for_all(list, &request), all, "{list:?} {parts:x?}");
            }
        }
    }

    #[test]
    fn an_image_spec_without_texts_asks_for_all_images() {
        let in_filter = |image: &[u8]| {
            let filter = [&[0x0a, image.len() as u8], image].concat();
            [&[0x0a, filter.len() as u8], &*filter].concat()
        };
        // In order: an empty spec, an empty name, an empty handler; a name, a handler, an annotation, a field of a
        // later CRI.
        for (image, all) in [
            (&[][..], true),
            (&[0x0a, 0], true),
            (&[0x9a, 1, 0], true),
            (&[0x0a, 1, b'a'], false),
            (&[0x9a, 1, 1, b'a'], false),
            (&[0x12, 0], false),
            (&[0xaa, 1, 0], false),
        ] {
            let request = in_filter(image);
            assert_eq!(asks_for_all(List::Images, &request), all, "{image:x?}");
            // Field 1 of the other filters is an id.
            assert!(!asks_for_all(List::Pods, &request));
        }
    }
}
