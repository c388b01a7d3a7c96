//! The settings of a simulated runtime: its name, handlers, features and format of replies.

use criswitch_cri::codec::cri;

/// The replies in which a runtime shows the handlers of its pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ShowsHandlers {
    Everywhere,
    /// The spec of a verbose status only, as in CRI-O.
    InSpec,
    Nowhere,
}

/// The settings of a simulated runtime. `Sim::set` changes them at any time.
pub struct Settings {
    pub runtime_name: String,
    pub version: String,
    /// The handlers of the runtime. The first handler is the runtime's default.
    pub handlers: Vec<cri::RuntimeHandler>,
    /// Whether Status lists the handlers. Runtimes older than the CRI of Kubernetes 1.30 list none.
    pub advertises_handlers: bool,
    pub shows_handlers: ShowsHandlers,
    pub features: cri::RuntimeFeatures,
    /// The configuration in a verbose Status. `None` means a configuration with the runtime's name only.
    pub config: Option<serde_json::Value>,
    pub conditions: Vec<cri::RuntimeCondition>,
    pub cgroup_driver: cri::CgroupDriver,
    pub image_ids: ImageIds,
    /// Whether RemoveImage fails for an image that the store does not have.
    pub rejects_unknown_images: bool,
    /// Whether ImageFsInfo has a file system of images.
    pub has_image_disk: bool,
    /// Whether ImageFsInfo has a file system of containers. Older runtimes report none.
    pub has_container_disk: bool,
    pub descriptors: Vec<cri::MetricDescriptor>,
    /// The number of items in each message of a stream list.
    pub items_a_message: usize,
    /// Whether a stream list begins with a message without items.
    pub empty_message_first: bool,
    /// The beginning of the URLs that Exec, Attach and PortForward return.
    pub streaming: String,
    /// The reply to ExecSync. `None` means that the output is the command.
    pub executed: Option<cri::ExecSyncResponse>,
    /// Whether a container that starts writes the last word of its command to its log.
    pub writes_logs: bool,
    /// Ids of images with which no container starts, because they have no shell.
    pub without_shell: Vec<String>,
    /// The maximum number of calls in flight on each connection that is opened after this setting. `None` means no
    /// limit.
    pub streams: Option<u32>,
}

/// The form of image ids.
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
            rejects_unknown_images: false,
            has_image_disk: true,
            has_container_disk: true,
            descriptors: vec![
                descriptor("container_cpu_usage_seconds_total"),
                descriptor("container_memory_usage_bytes"),
            ],
            items_a_message: 2,
            empty_message_first: false,
            streaming: "http://127.0.0.1:10010".to_owned(),
            executed: None,
            writes_logs: false,
            without_shell: Vec::new(),
            streams: None,
        }
    }

    /// The handlers in Status: every handler, and the default again under the empty name.
    pub fn runtime_handlers(&self) -> Vec<cri::RuntimeHandler> {
        if !self.advertises_handlers {
            return Vec::new();
        }
        self.handlers
            .first()
            .cloned()
            .map(|first| cri::RuntimeHandler {
                name: String::new(),
                ..first
            })
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
