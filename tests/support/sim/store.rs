//! What a simulated runtime keeps: pods, containers, images, and who listens for events.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use criswitch::codec::cri;
use tokio::sync::broadcast;
use tonic::Status;

use super::containers::Container;
use super::ids::Ids;
use super::pods::Pod;
use super::settings::Settings;

pub type Answer<T> = Result<T, Status>;

/// Events that a listener may leave unread before it loses some.
const UNREAD_EVENTS: usize = 1024;

pub struct Store {
    pub settings: Settings,
    pub ids: Ids,
    pub pods: Vec<Pod>,
    pub containers: Vec<Container>,
    pub images: Vec<cri::Image>,
    /// By the path that they were written to.
    pub checkpoints: HashMap<String, Checkpoint>,
    pub network: Option<cri::NetworkConfig>,
    pub events: broadcast::Sender<Result<cri::ContainerEventResponse, Status>>,
}

/// What a checkpoint of a pod remembers.
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
            checkpoints: HashMap::new(),
            network: None,
            events: broadcast::Sender::new(UNREAD_EVENTS),
        }
    }

    /// Ends all streams of events, with this status or well.
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
                let own = || serde_json::json!({ "runtime": self.settings.runtime_name });
                ("config", self.settings.config.clone().unwrap_or_else(own))
            }),
            runtime_handlers: self.settings.runtime_handlers(),
            features: Some(self.settings.features),
        }
    }

    /// Tells the listeners what happened to a container, or to a pod under the pod's own id.
    pub fn tell(&self, id: &str, pod: &str, what: cri::ContainerEventType) {
        let event = cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: what.into(),
            created_at: now(),
            pod_sandbox_status: self.pods.iter().find(|p| p.id == pod).map(Pod::status),
            containers_statuses: self.statuses_in(pod),
        };
        // Without a listener there is nobody to tell.
        self.events.send(Ok(event)).ok();
    }

    pub fn statuses_in(&self, pod: &str) -> Vec<cri::ContainerStatus> {
        let inside = self.containers.iter().filter(|c| c.pod == pod);
        inside.map(Container::status).collect()
    }
}

/// The `info` of a verbose reply: one key, so that its bytes are the same every time.
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

/// Does an item have every label of a selector?
pub fn selects(selector: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Is a filter's id that of an item? An empty one is any.
pub fn admits(wanted: &str, id: &str) -> bool {
    wanted.is_empty() || wanted == id
}

pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos().try_into().unwrap()
}
