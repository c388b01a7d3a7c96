//! What a simulated runtime says of itself.

use criswitch::codec::cri;

/// Where a runtime shows the handlers of its pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ShowsHandlers {
    Everywhere,
    /// In the spec of a verbose status alone, as CRI-O does.
    InSpec,
    Nowhere,
}

/// Changed with `Sim::set`, at any time.
pub struct Settings {
    pub runtime_name: String,
    pub version: String,
    /// The first is its own default.
    pub handlers: Vec<cri::RuntimeHandler>,
    /// Runtimes before the CRI of 1.29 name no handlers in Status.
    pub advertises_handlers: bool,
    pub shows_handlers: ShowsHandlers,
    pub features: cri::RuntimeFeatures,
    /// What a verbose Status shows of its configuration, if not its name.
    pub config: Option<serde_json::Value>,
    pub conditions: Vec<cri::RuntimeCondition>,
    pub cgroup_driver: cri::CgroupDriver,
    pub image_ids: ImageIds,
    pub descriptors: Vec<cri::MetricDescriptor>,
    /// How many items a message of a stream list holds.
    pub items_a_message: usize,
    /// Whether a message without items comes before those with them.
    pub empty_message_first: bool,
}

/// How image ids are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ImageIds {
    /// `sha256:<hex>`, as containerd does.
    Prefixed,
    /// `<hex>`, as CRI-O does.
    Bare,
}

impl Settings {
    pub fn new(name: &str) -> Settings {
        Settings {
            runtime_name: name.to_owned(),
            version: "1.0.0".to_owned(),
            handlers: vec![handler(name)],
            advertises_handlers: true,
            shows_handlers: ShowsHandlers::Everywhere,
            features: cri::RuntimeFeatures {
                supplemental_groups_policy: true,
                ..Default::default()
            },
            config: None,
            conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            cgroup_driver: cri::CgroupDriver::Systemd,
            image_ids: ImageIds::Prefixed,
            descriptors: vec![
                descriptor("container_cpu_usage_seconds_total"),
                descriptor("container_memory_usage_bytes"),
            ],
            items_a_message: 2,
            empty_message_first: false,
        }
    }

    /// What Status lists: every handler, and the default once more under the empty name.
    pub fn runtime_handlers(&self) -> Vec<cri::RuntimeHandler> {
        if !self.advertises_handlers {
            return Vec::new();
        }
        let default = self
            .handlers
            .first()
            .cloned()
            .map(|first| cri::RuntimeHandler {
                name: String::new(),
                ..first
            });
        default
            .into_iter()
            .chain(self.handlers.iter().cloned())
            .collect()
    }
}

pub fn handler(name: &str) -> cri::RuntimeHandler {
    cri::RuntimeHandler {
        name: name.to_owned(),
        features: Some(cri::RuntimeHandlerFeatures::default()),
    }
}

fn condition(name: &str) -> cri::RuntimeCondition {
    cri::RuntimeCondition {
        r#type: name.to_owned(),
        status: true,
        ..Default::default()
    }
}

fn descriptor(name: &str) -> cri::MetricDescriptor {
    cri::MetricDescriptor {
        name: name.to_owned(),
        help: format!("{name}, simulated"),
        label_keys: vec!["id".to_owned(), "name".to_owned()],
    }
}
