//! Applies a list request's filter to a cached list, by the rules of runtimes. Does no I/O.
//!
//! Stats are matched only by their own fields: a container's pod is unknown here.

use std::collections::{HashMap, HashSet};

use crate::codec::protobuf::{self, Edit, Editable, MAP_KEY, MAP_VALUE, Malformed, Path};
use crate::rpc::List;
use crate::rpc::fields::{
    FILTER, ITEMS, LISTED_ID, METRICS_POD, STATS_ID, container, container_attributes,
    container_filter, container_metrics, container_stats, container_stats_filter, image,
    image_filter, image_spec, linux_pod_sandbox_stats, pod_sandbox, pod_sandbox_attributes,
    pod_sandbox_filter, pod_sandbox_metrics, pod_sandbox_state_value, pod_sandbox_stats,
    pod_sandbox_stats_filter, windows_pod_sandbox_stats,
};

/// The fields of a listed item and of a filter that are compared (cri-api 1.37: `PodSandbox`, `Container`, their stats
/// and filters). A filter has its id in field 1.
struct ItemShape {
    /// The item's id.
    id: Path,
    /// The field with the state in the item, and in the filter. The filter wraps the state in a message.
    state: Option<(u32, u32)>,
    /// The field with the pod's id in the item, and in the filter.
    pod: Option<(u32, u32)>,
    /// The item's labels, and the filter's selector.
    labels: (Path, u32),
    /// The paths to the containers within an item, each with the path to the id in such a container.
    inside: &'static [(Path, Path)],
}

const PODS: ItemShape = ItemShape {
    id: LISTED_ID,
    state: Some((pod_sandbox::STATE, pod_sandbox_filter::STATE)),
    pod: None,
    labels: (&[pod_sandbox::LABELS], pod_sandbox_filter::LABEL_SELECTOR),
    inside: &[],
};
const CONTAINERS: ItemShape = ItemShape {
    id: LISTED_ID,
    state: Some((container::STATE, container_filter::STATE)),
    pod: Some((container::POD_SANDBOX_ID, container_filter::POD_SANDBOX_ID)),
    labels: (&[container::LABELS], container_filter::LABEL_SELECTOR),
    inside: &[],
};
const CONTAINER_STATS: ItemShape = ItemShape {
    id: STATS_ID,
    state: None,
    pod: None,
    labels: (
        &[container_stats::ATTRIBUTES, container_attributes::LABELS],
        container_stats_filter::LABEL_SELECTOR,
    ),
    inside: &[],
};
const POD_STATS: ItemShape = ItemShape {
    id: STATS_ID,
    state: None,
    pod: None,
    labels: (
        &[
            pod_sandbox_stats::ATTRIBUTES,
            pod_sandbox_attributes::LABELS,
        ],
        pod_sandbox_stats_filter::LABEL_SELECTOR,
    ),
    inside: &[
        (
            &[
                pod_sandbox_stats::LINUX,
                linux_pod_sandbox_stats::CONTAINERS,
            ],
            STATS_ID,
        ),
        (
            &[
                pod_sandbox_stats::WINDOWS,
                windows_pod_sandbox_stats::CONTAINERS,
            ],
            STATS_ID,
        ),
    ],
};
const POD_METRICS: ItemShape = ItemShape {
    id: METRICS_POD,
    state: None,
    pod: None,
    // Metrics have no labels, and requests for metrics have no filter.
    labels: (&[], 0),
    inside: &[(
        &[pod_sandbox_metrics::CONTAINER_METRICS],
        &[container_metrics::CONTAINER_ID],
    )],
};

/// Returns the items of `list` that `keep` accepts by their id and that match the filter in `request`. The bytes of the
/// items stay unchanged.
///
/// Ids match by prefix, because runtimes accept short ids. Labels match if the item has all labels of the selector.
///
/// # Errors
/// `items` or `request` is not valid protobuf.
pub fn filter<M: Editable>(
    list: List,
    items: &M,
    request: &[u8],
    mut keep: impl FnMut(&str) -> bool,
) -> Result<M, Malformed> {
    let filter = protobuf::submessage(request, &[FILTER])?;
    let wanted = FilterTerms::of(list, &filter)?;
    protobuf::only(items, ITEMS, |item| {
        Ok(keep(protobuf::string(item, id(list))?)
            && (filter.is_empty() || wanted.matches(list, item)?))
    })
}

/// Returns the items of `list` without the inner containers whose ids `keep` rejects; `None` if `keep` rejects none.
///
/// # Errors
/// `items` is not valid protobuf.
pub fn without_nested_containers<M: Editable>(
    list: List,
    items: &M,
    keep: impl Fn(&str) -> bool,
) -> Result<Option<M>, Malformed> {
    let Some(shape) = shape(list) else {
        return Ok(None);
    };
    protobuf::edited(items, &[ITEMS], &mut |item| {
        let mut left = None;
        for (path, id) in shape.inside {
            let drop = &mut |container: &[u8]| {
                let is_kept = keep(protobuf::string(container, id)?);
                Ok(if is_kept { Edit::Same } else { Edit::Dropped })
            };
            left = protobuf::edit_within(left.as_deref().unwrap_or(item), path, drop)?.or(left);
        }
        Ok(left.map_or(Edit::Same, Edit::Other))
    })
}

/// The number of inner containers in all items of `list`.
///
/// # Errors
/// `items` is not valid protobuf.
pub fn count_inside(list: List, items: &[u8]) -> Result<usize, Malformed> {
    shape(list)
        .map_or(&[][..], |shape| shape.inside)
        .iter()
        .map(|(path, _)| protobuf::count(items, &[&[ITEMS], *path].concat()))
        .sum()
}

/// Returns the items of `list` whose ids are not in `seen`, and adds their ids to `seen`. `None` if all items are new.
/// An item without an id counts as new. Once `seen` has `most` ids, every item counts as new.
///
/// # Errors
/// `items` is not valid protobuf.
pub fn without_seen<M: Editable>(
    list: List,
    items: &M,
    seen: &mut HashSet<String>,
    most: usize,
) -> Result<Option<M>, Malformed> {
    protobuf::retain(items, ITEMS, |item| {
        let id = protobuf::string(item, self::id(list))?;
        Ok(id.is_empty() || seen.len() >= most || seen.insert(id.to_owned()))
    })
}

fn shape(list: List) -> Option<&'static ItemShape> {
    match list {
        List::Pods => Some(&PODS),
        List::Containers => Some(&CONTAINERS),
        List::ContainerStats => Some(&CONTAINER_STATS),
        List::PodStats => Some(&POD_STATS),
        List::PodMetrics => Some(&POD_METRICS),
        List::Images | List::MetricDescriptors => None,
    }
}

/// The number of labels in the selector of a request for `list`. Returns 0 if the bytes are malformed.
pub fn count_selector_labels(list: List, request: &[u8]) -> usize {
    shape(list).map_or(0, |shape| {
        protobuf::count(request, &[FILTER, shape.labels.1]).unwrap_or_default()
    })
}

/// The path to the id of an item.
pub fn id(list: List) -> Path {
    shape(list).map_or(LISTED_ID, |shape| shape.id)
}

/// The fields of a filter. They are read once and not for each item, because a client can make both the filter and the
/// list large.
#[derive(Default)]
struct FilterTerms<'f> {
    /// The beginning of the item's id.
    id: &'f str,
    /// The beginning of the pod's id.
    pod: &'f str,
    state: Option<i32>,
    /// The values by key. If a key occurs twice, its last value counts.
    labels: HashMap<&'f str, &'f str>,
    /// The id, a tag or a digest of an image.
    image: &'f str,
}

impl<'f> FilterTerms<'f> {
    fn of(list: List, filter: &'f [u8]) -> Result<FilterTerms<'f>, Malformed> {
        let Some(shape) = shape(list) else {
            let image = match list {
                List::Images => {
                    protobuf::string(filter, &[image_filter::IMAGE, image_spec::IMAGE])?
                }
                _ => "",
            };
            return Ok(FilterTerms {
                image,
                ..FilterTerms::default()
            });
        };
        let pod = shape
            .pod
            .map(|(_, field)| protobuf::string(filter, &[field]));
        let state = match shape.state {
            Some((_, field)) if protobuf::has(filter, field)? => {
                Some(state(filter, &[field, pod_sandbox_state_value::STATE])?)
            }
            _ => None,
        };
        Ok(FilterTerms {
            id: protobuf::string(filter, &[pod_sandbox_filter::ID])?,
            pod: pod.transpose()?.unwrap_or_default(),
            state,
            labels: labels(filter, &[shape.labels.1], |_| true)?,
            image: "",
        })
    }

    fn matches(&self, list: List, item: &[u8]) -> Result<bool, Malformed> {
        let Some(shape) = shape(list) else {
            return self.matches_image(item);
        };
        if !protobuf::string(item, shape.id)?.starts_with(self.id) {
            return Ok(false);
        }
        if let Some((field, _)) = shape.pod
            && !protobuf::string(item, &[field])?.starts_with(self.pod)
        {
            return Ok(false);
        }
        if let (Some(wanted), Some((field, _))) = (self.state, shape.state)
            && state(item, &[field])? != wanted
        {
            return Ok(false);
        }
        if self.labels.is_empty() {
            return Ok(true);
        }
        let found = labels(item, shape.labels.0, |key| self.labels.contains_key(key))?;
        Ok(found == self.labels)
    }

    /// An image matches by its id, a tag or a digest.
    fn matches_image(&self, image: &[u8]) -> Result<bool, Malformed> {
        if self.image.is_empty() || protobuf::string(image, LISTED_ID)? == self.image {
            return Ok(true);
        }
        for names in [image::REPO_TAGS, image::REPO_DIGESTS] {
            if protobuf::strings(image, &[names])?.contains(&self.image) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The enum at `path`. A protobuf enum has 32 bits, so higher bits of the integer do not count.
fn state(message: &[u8], path: &[u32]) -> Result<i32, Malformed> {
    Ok(protobuf::varint(message, path)? as i32)
}

/// The labels at `path` whose keys `is_wanted` accepts. If a key occurs twice, its last value counts.
fn labels<'m>(
    message: &'m [u8],
    path: &[u32],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<HashMap<&'m str, &'m str>, Malformed> {
    let mut labels = HashMap::new();
    for label in protobuf::all_bytes(message, path)? {
        let key = protobuf::string(label, &[MAP_KEY])?;
        if is_wanted(key) {
            labels.insert(key, protobuf::string(label, &[MAP_VALUE])?);
        }
    }
    Ok(labels)
}
