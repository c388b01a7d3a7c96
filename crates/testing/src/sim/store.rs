//! The state of a simulated runtime: pods, containers, images, security profiles, listeners for events.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use criswitch_cri::codec::cri;
use tokio::sync::broadcast;
use tonic::Status;

use super::containers::Container;
use super::ids::Ids;
use super::pods::Pod;
use super::settings::Settings;

pub type Answer<T> = Result<T, Status>;

/// The number of unread events after which a listener loses events.
const UNREAD_EVENTS: usize = 1024;

pub struct Store {
    pub settings: Settings,
    pub ids: Ids,
    pub pods: Vec<Pod>,
    pub containers: Vec<Container>,
    pub images: Vec<cri::Image>,
    pub profiles: Vec<cri::SecurityProfileInfo>,
    /// Checkpoints by the path in the request that wrote them.
    pub checkpoints: HashMap<String, Checkpoint>,
    pub network: Option<cri::NetworkConfig>,
    pub events: broadcast::Sender<Result<cri::ContainerEventResponse, Status>>,
}

/// The content of a pod's checkpoint.
#[derive(Clone)]
pub struct Checkpoint {
    pub pod: cri::PodSandboxConfig,
    pub containers: Vec<cri::ContainerConfig>,
}

impl Store {
    pub fn new(name: &str) -> Store {
        Store {
            settings: Settings::new(name),
            ids: Ids::new(name),
            pods: Vec::new(),
            containers: Vec::new(),
            images: Vec::new(),
            profiles: Vec::new(),
            checkpoints: HashMap::new(),
            network: None,
            events: broadcast::Sender::new(UNREAD_EVENTS),
        }
    }

    /// Ends all streams of events, with this status or with OK.
    pub fn end_events(&mut self, status: Option<Status>) {
        if let Some(status) = status {
            self.events.send(Err(status)).ok();
        }
        self.events = broadcast::Sender::new(UNREAD_EVENTS);
    }

    pub fn version(&self) -> cri::VersionResponse {
        cri::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: self.settings.runtime_name.clone(),
            runtime_version: self.settings.version.clone(),
            runtime_api_version: "v1".to_owned(),
        }
    }

    pub fn status(&self, request: &cri::StatusRequest) -> cri::StatusResponse {
        cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: self.settings.conditions.clone(),
            }),
            info: info(request.verbose, || {
                let config = self.settings.config.clone();
                (
                    "config",
                    config.unwrap_or_else(
                        || serde_json::json!({ "runtime": self.settings.runtime_name }),
                    ),
                )
            }),
            runtime_handlers: self.settings.runtime_handlers(),
            features: Some(self.settings.features),
        }
    }

    /// Sends listeners an event about the container `id` of `pod`. If `id` is the pod's id, the event is about the pod.
    pub fn report(&self, id: &str, pod: &str, what: cri::ContainerEventType) {
        let event = cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: what.into(),
            created_at: now(),
            pod_sandbox_status: self.pods.iter().find(|p| p.id == pod).map(Pod::status),
            containers_statuses: self.statuses_in(pod),
        };
        // `send` returns an error if there is no listener. That is expected.
        self.events.send(Ok(event)).ok();
    }

    pub fn statuses_in(&self, pod: &str) -> Vec<cri::ContainerStatus> {
        self.containers
            .iter()
            .filter(|c| c.pod == pod)
            .map(Container::status)
            .collect()
    }
}

/// The `info` of a verbose reply. It has only one key, so that the encoded bytes are always the same.
pub fn info(
    verbose: bool,
    entry: impl FnOnce() -> (&'static str, serde_json::Value),
) -> HashMap<String, String> {
    let entry = verbose.then(entry);
    entry
        .map(|(key, value)| (key.to_owned(), value.to_string()))
        .into_iter()
        .collect()
}

/// Whether an item has every label of a selector.
pub fn selects(selector: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether an item's id matches a filter's id. An empty filter id matches any.
pub fn admits(wanted: &str, id: &str) -> bool {
    wanted.is_empty() || wanted == id
}

pub fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
        .try_into()
        .unwrap()
}
