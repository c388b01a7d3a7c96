//! Filters of lists: ids, a state, labels. Clients, runtimes and the judge share this model. prost encodes and decodes
//! the filter messages, so the results do not depend on criswitch's filters.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{Kind, Row};
use prost::Message;

use super::truth::{Moment, Thing};

/// The label with a pod's uid. The pod's containers have the same label.
pub const UID: &str = "io.kubernetes.pod.uid";
/// A label that several pods and containers share.
pub const APP: &str = "app";

/// The kind of filter of a list. The ids in the filter are chosen when the call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    Not,
    Id,
    Pod,
    State,
    Label,
    Uid,
    StateAndLabel,
    PodAndState,
}

impl Narrow {
    pub fn by_id(self) -> bool {
        self == Narrow::Id
    }

    pub fn by_pod(self) -> bool {
        matches!(self, Narrow::Pod | Narrow::PodAndState)
    }

    pub fn by_state(self) -> bool {
        matches!(
            self,
            Narrow::State | Narrow::StateAndLabel | Narrow::PodAndState
        )
    }

    pub fn by_label(self) -> bool {
        matches!(self, Narrow::Label | Narrow::StateAndLabel)
    }
}

/// The kinds of filter that requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Pods,
    Containers,
    PodStats,
    ContainerStats,
}

impl Takes {
    pub fn of(row: &Row) -> Option<Takes> {
        Some(match row.name {
            "ListPodSandbox" | "StreamPodSandboxes" => Takes::Pods,
            "ListContainers" | "StreamContainers" => Takes::Containers,
            "ListPodSandboxStats" | "StreamPodSandboxStats" => Takes::PodStats,
            "ListContainerStats" | "StreamContainerStats" => Takes::ContainerStats,
            _ => return None,
        })
    }

    pub fn kind(self) -> Kind {
        match self {
            Takes::Pods | Takes::PodStats => Kind::Pod,
            Takes::Containers | Takes::ContainerStats => Kind::Container,
        }
    }

    pub fn has_states(self) -> bool {
        matches!(self, Takes::Pods | Takes::Containers)
    }
}

/// The filter of a list. An item must match every field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// A prefix of the item's id.
    pub id: String,
    /// For containers: a prefix of the pod's id.
    pub pod: String,
    pub state: Option<i32>,
    pub labels: HashMap<String, String>,
}

impl Filter {
    /// The single id that the list asks for, or empty.
    pub fn names(&self) -> &str {
        if self.id.is_empty() {
            &self.pod
        } else {
            &self.id
        }
    }

    pub fn wants_app(&mut self, app: &str) {
        self.labels.insert(APP.to_owned(), app.to_owned());
    }

    pub fn wants_uid(&mut self, uid: &str) {
        self.labels.insert(UID.to_owned(), uid.to_owned());
    }

    pub fn uid(&self) -> Option<&str> {
        self.labels.get(UID).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether the filter matches at least one of the states of `thing` from `since` on.
    pub fn may_want(&self, thing: &Thing, since: Moment) -> bool {
        self.wants(thing) && thing.states_since(since).any(|state| self.wants_in(state))
    }

    /// Whether the filter matches every state of `thing` from `since` on.
    pub fn must_want(&self, thing: &Thing, since: Moment) -> bool {
        self.wants(thing) && thing.states_since(since).all(|state| self.wants_in(state))
    }

    fn wants(&self, thing: &Thing) -> bool {
        let labels = thing.labels();
        let mut wanted = self.labels.iter();
        thing.id.starts_with(&self.id)
            && thing.pod.starts_with(&self.pod)
            && wanted.all(|(key, value)| labels.get(key) == Some(value))
    }

    fn wants_in(&self, state: i32) -> bool {
        self.state.is_none_or(|wanted| wanted == state)
    }

    /// A request of `row` with this filter.
    pub fn request(&self, row: &Row) -> Bytes {
        let (id, label_selector) = (self.id.clone(), self.labels.clone());
        let pod_sandbox_id = self.pod.clone();
        let filter = match Takes::of(row) {
            None => return Bytes::new(),
            Some(Takes::Pods) => cri::PodSandboxFilter {
                id,
                state: self.state.map(|state| cri::PodSandboxStateValue { state }),
                label_selector,
            }
            .encode_to_vec(),
            Some(Takes::Containers) => cri::ContainerFilter {
                id,
                state: self.state.map(|state| cri::ContainerStateValue { state }),
                pod_sandbox_id,
                label_selector,
            }
            .encode_to_vec(),
            Some(Takes::PodStats) => {
                cri::PodSandboxStatsFilter { id, label_selector }.encode_to_vec()
            }
            Some(Takes::ContainerStats) => cri::ContainerStatsFilter {
                id,
                pod_sandbox_id,
                label_selector,
            }
            .encode_to_vec(),
        };
        let mut request = BytesMut::new();
        protobuf::put_bytes(&mut request, 1, &filter);
        request.freeze()
    }

    /// The filter of a request of `row`.
    pub fn read(row: &Row, request: &[u8]) -> Filter {
        let filter = protobuf::bytes(request, &[1]).unwrap();
        match Takes::of(row) {
            None => Filter::default(),
            Some(Takes::Pods) => {
                let it = cri::PodSandboxFilter::decode(filter).unwrap();
                let state = it.state.map(|state| state.state);
                Filter::of(it.id, String::new(), state, it.label_selector)
            }
            Some(Takes::Containers) => {
                let it = cri::ContainerFilter::decode(filter).unwrap();
                let state = it.state.map(|state| state.state);
                Filter::of(it.id, it.pod_sandbox_id, state, it.label_selector)
            }
            Some(Takes::PodStats) => {
                let it = cri::PodSandboxStatsFilter::decode(filter).unwrap();
                Filter::of(it.id, String::new(), None, it.label_selector)
            }
            Some(Takes::ContainerStats) => {
                let it = cri::ContainerStatsFilter::decode(filter).unwrap();
                Filter::of(it.id, it.pod_sandbox_id, None, it.label_selector)
            }
        }
    }

    fn of(id: String, pod: String, state: Option<i32>, labels: HashMap<String, String>) -> Filter {
        Filter {
            id,
            pod,
            state,
            labels,
        }
    }
}
