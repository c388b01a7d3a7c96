//! The table of configuration keys: one entry for each key, data only.

use criswitch_platform::{paths, users};

use super::{Applies, ConfigValue, Key, KeyKind, Limits, Reader};
use crate::DEFAULT_LISTEN;
use crate::value::UNLIMITED;

const NO_LIMITS: Limits = Limits {
    zero: true,
    most: "",
    unlimited: false,
};
/// The limits of a waiting time. One hour is longer than a usual grace period, a start, or a useful wait for a list.
const WAIT: Limits = Limits {
    most: "1h",
    ..NO_LIMITS
};
/// The limits of a timeout. A timeout of zero would give a backend no time to answer.
const TIMEOUT: Limits = Limits {
    zero: false,
    ..WAIT
};
const AGE: Limits = Limits {
    unlimited: true,
    ..WAIT
};
/// The limits of a message size. criswitch holds a merged reply in memory, so "unlimited" is not allowed. The kubelet
/// accepts at most 16 MiB, so 1 GiB is enough.
const MESSAGE: Limits = Limits {
    zero: false,
    most: "1GiB",
    unlimited: false,
};

const KEY: Key = Key {
    table: "",
    name: "",
    kind: KeyKind::Text("string"),
    default: None,
    example: "",
    limits: NO_LIMITS,
    applies: Applies::Reload,
    help: "",
    value: Reader::Nowhere,
};
const HANDLER: Key = Key {
    table: "handlers",
    ..KEY
};
const BACKEND: Key = Key {
    table: "backends",
    ..KEY
};
const OVERHEAD: Key = Key {
    table: "overhead",
    kind: KeyKind::Text("quantity"),
    applies: Applies::Manifests,
    ..KEY
};
const TOLERATION: Key = Key {
    table: "tolerations",
    applies: Applies::Manifests,
    ..KEY
};
const SOCKET: KeyKind = KeyKind::Text("socket path");
/// A socket path that a backend could have.
pub(crate) const SOCKET_EXAMPLE: &str = paths::BACKEND_EXAMPLE;

/// Every key, in the order of `config/criswitch.toml`.
pub static KEYS: &[Key] = &[
    Key {
        name: "listen",
        kind: SOCKET,
        default: Some(DEFAULT_LISTEN),
        applies: Applies::Restart,
        help: "The socket that the kubelet (`--container-runtime-endpoint`) and crictl connect to: a path, or \
               `unix://` and a path, of at most 107 bytes. It must not be `/run/containerd/containerd.sock` and must \
               not end in `run/crio/crio.sock`, because the kubelet treats these paths specially. If systemd holds \
               the socket, change `ListenStream=` of `criswitch.socket` too.",
        value: Reader::Config(|config| ConfigValue::text(&config.listen)),
        ..KEY
    },
    Key {
        name: "default_handler",
        kind: KeyKind::Text("handler"),
        example: "\"runc\"",
        help: "The row of `[handlers]` for pods without a RuntimeClass. Required. Its backend is the default backend, which \
               also answers for the node: its version, and whether the runtime and the network are ready.",
        value: Reader::Config(|config| ConfigValue::text(&config.table.default.name)),
        ..KEY
    },
    Key {
        name: "shutdown_timeout",
        kind: KeyKind::Duration,
        default: Some("10s"),
        limits: WAIT,
        help: "How long calls in flight may go on after SIGTERM. A call that takes longer ends with `Unavailable`.",
        value: Reader::Config(|config| ConfigValue::Duration(config.shutdown_timeout)),
        ..KEY
    },
    Key {
        name: "max_message",
        kind: KeyKind::Size,
        default: Some("16MiB"),
        limits: MESSAGE,
        applies: Applies::Restart,
        help: "The largest message that criswitch reads, and the largest list that criswitch merges. The kubelet itself \
               accepts 16 MiB, so a larger limit is for other clients only.",
        value: Reader::Config(|config| ConfigValue::Size(config.max_message)),
        ..KEY
    },
    Key {
        name: "start_wait",
        kind: KeyKind::Duration,
        default: Some("30s"),
        limits: WAIT,
        applies: Applies::NextStart,
        help: "How long the first lists after a start wait for backends that have not answered yet, so that \
               criswitch may start before its backends. The first lists wait only 1 s for a backend whose lists were \
               saved before a restart.",
        value: Reader::Config(|config| ConfigValue::Duration(config.start_wait)),
        ..KEY
    },
    Key {
        name: "list_timeout",
        kind: KeyKind::Duration,
        default: Some("2s"),
        limits: TIMEOUT,
        help: "How long a merged call waits for a backend before it uses the backend's cached list, or omits the \
               backend if the RPC allows that. A backend's row may set a different value.",
        value: Reader::Config(|config| ConfigValue::Duration(config.list_timeout)),
        ..KEY
    },
    Key {
        name: "stats_timeout",
        kind: KeyKind::Duration,
        default: Some("2s"),
        limits: TIMEOUT,
        help: "How long a merged call for stats, metrics or metric descriptors waits for a backend. After that \
               criswitch serves the last stats of the backend for 2 minutes at most, and then omits the backend. A \
               backend's row may set a different value.",
        value: Reader::Config(|config| ConfigValue::Duration(config.stats_timeout)),
        ..KEY
    },
    Key {
        name: "stale_lists",
        kind: KeyKind::Duration,
        default: Some(UNLIMITED),
        limits: AGE,
        help: "The maximum age of a backend's cached lists, which are served while the backend does not answer. With \
               \"unlimited\" only the pods of that backend are affected. If a duration is set, all lists of the node fail \
               when the cached lists are older than that, and the node's pods are evicted later. With \"0s\", cached \
               lists are never served. A backend's row may set a different value.",
        value: Reader::Config(|config| ConfigValue::Duration(config.stale_lists)),
        ..KEY
    },
    Key {
        name: "runtime_dir",
        kind: KeyKind::Text("directory"),
        default: Some(""),
        example: paths::STATE_EXAMPLES[0],
        applies: Applies::Restart,
        help: "The directory for the state of this boot: the last lists of each backend, so that lists are complete \
               after a restart while a backend does not answer. criswitch creates it with mode 0700. Use a tmpfs. \
               \"\" means the directory of systemd's unit, `/run/criswitch/state`; without systemd, the path \
               of the socket with `.state` appended.",
        value: Reader::Config(|config| ConfigValue::path(config.runtime_dir.as_deref())),
        ..KEY
    },
    Key {
        name: "state_dir",
        kind: KeyKind::Text("directory"),
        default: Some(""),
        example: paths::STATE_EXAMPLES[1],
        applies: Applies::Restart,
        help: "The directory for the state that must survive a reboot. criswitch also uses it to distinguish a \
               restart from a reboot. \"\" means the directory of systemd's unit, `/var/lib/criswitch`; without \
               systemd, the path of the socket with `.state` appended.",
        value: Reader::Config(|config| ConfigValue::path(config.state_dir.as_deref())),
        ..KEY
    },
    Key {
        name: users::KEY,
        kind: KeyKind::Users,
        default: Some(users::DEFAULT),
        example: users::EXAMPLE,
        applies: Applies::Restart,
        help: users::HELP,
        value: Reader::Config(|config| ConfigValue::Users(config.allow_uids.clone())),
        ..KEY
    },
    Key {
        name: "watch",
        kind: KeyKind::Boolean,
        default: Some("false"),
        help: "Whether criswitch reloads automatically when the configuration file or a file in `conf.d` has changed. \
               The files may be symbolic links, as in a mounted ConfigMap.",
        value: Reader::Config(|config| ConfigValue::Boolean(config.watch)),
        ..KEY
    },
    Key {
        name: "labels_file",
        kind: KeyKind::Text("file"),
        default: Some(""),
        example: paths::LABELS_EXAMPLE,
        help: "The file for the labels of the node, such as `criswitch.io/handler.kata=true`: a feature file of \
               node-feature-discovery. criswitch replaces the file when the labels change, and leaves it when criswitch \
               stops. The directory must exist, and systemd's unit must allow criswitch to write there \
               (`ReadWritePaths=`). If the key is set, `criswitch manifests` prints RuntimeClasses that select the \
               label of their handler. \"\" means no file.",
        value: Reader::Config(|config| ConfigValue::path(config.labels_file.as_deref())),
        ..KEY
    },
    Key {
        name: "labels_failed_after",
        kind: KeyKind::Duration,
        default: Some("5m"),
        limits: AGE,
        help: "How long a backend may fail before criswitch removes the labels of the backend and of its handlers. criswitch \
               sets them again when the backend is ready.",
        value: Reader::Config(|config| ConfigValue::Duration(config.labels_failed_after)),
        ..KEY
    },
    Key {
        name: "backend",
        kind: KeyKind::Text("backend"),
        help: "The name of the backend that runs the handler's pods. A row has a backend or a socket, not both.",
        ..HANDLER
    },
    Key {
        name: "socket",
        kind: SOCKET,
        example: SOCKET_EXAMPLE,
        help: "The path of the backend's socket. A backend without a name is named after the first handler with its socket.",
        ..HANDLER
    },
    Key {
        name: "handler",
        help: "The backend's name for the handler, if it differs from the name of the row. \"\" means the backend's own \
               default handler.",
        ..HANDLER
    },
    Key {
        name: "kind",
        kind: KeyKind::Text("kind"),
        example: "\"gvisor\"",
        applies: Applies::Commands,
        help: "The kind of runtime: \"runc\", \"crun\", \"gvisor\", \"kata\", \"runhcs\" or \"other\". Without it, the kind follows \
               from the backend's configuration if the backend reports it, else from the handler's name.",
        ..HANDLER
    },
    Key {
        name: "class",
        kind: KeyKind::Text("RuntimeClass"),
        example: "\"gvisor\"",
        applies: Applies::Manifests,
        help: "The name of the RuntimeClass, if it differs from the name of the row. The handler of a RuntimeClass is \
               immutable: if the cluster has a RuntimeClass `gvisor` with the handler `runsc`, name the row `runsc` and \
               set `class = \"gvisor\"`.",
        ..HANDLER
    },
    Key {
        name: "overhead",
        kind: KeyKind::Table,
        example: "{ cpu = \"250m\", memory = \"120Mi\" }",
        applies: Applies::Manifests,
        help: "The resources that each pod of the RuntimeClass uses in addition to its containers.",
        ..HANDLER
    },
    Key {
        name: "node_selector",
        kind: KeyKind::Table,
        example: "{ \"example.com/kata\" = \"true\" }",
        applies: Applies::Manifests,
        help: "The labels that a node must have to run pods of the RuntimeClass.",
        ..HANDLER
    },
    Key {
        name: "tolerations",
        kind: KeyKind::Table,
        example: "[{ key = \"example.com/kata\", operator = \"Exists\" }]",
        applies: Applies::Manifests,
        help: "The taints that pods of the RuntimeClass tolerate: an array of tables.",
        ..HANDLER
    },
    Key {
        name: "cpu",
        example: "\"250m\"",
        help: "Processor time.",
        ..OVERHEAD
    },
    Key {
        name: "memory",
        example: "\"120Mi\"",
        help: "Memory.",
        ..OVERHEAD
    },
    Key {
        name: "key",
        help: "The key of the taint. If omitted, `operator` must be \"Exists\", and every taint is tolerated.",
        ..TOLERATION
    },
    Key {
        name: "operator",
        default: Some("Equal"),
        example: "\"Exists\"",
        help: "\"Equal\" if the taint must have the value, \"Exists\" if any value is tolerated.",
        ..TOLERATION
    },
    Key {
        name: "value",
        help: "The value of the taint.",
        ..TOLERATION
    },
    Key {
        name: "effect",
        example: "\"NoSchedule\"",
        help: "\"NoSchedule\", \"PreferNoSchedule\" or \"NoExecute\"; if omitted, all effects.",
        ..TOLERATION
    },
    Key {
        name: "toleration_seconds",
        kind: KeyKind::Integer,
        example: "300",
        help: "How long the taint is tolerated, in seconds; forever if omitted. Only with the effect \"NoExecute\".",
        ..TOLERATION
    },
    Key {
        name: "socket",
        kind: SOCKET,
        example: SOCKET_EXAMPLE,
        help: "The path of the socket. Required; a row may also be the path alone, without braces.",
        value: Reader::Backend(|backend| ConfigValue::text(&backend.socket)),
        ..BACKEND
    },
    Key {
        name: "list_timeout",
        kind: KeyKind::Duration,
        example: "\"5s\"",
        limits: TIMEOUT,
        help: "Overrides the top-level `list_timeout` for this backend.",
        value: Reader::Backend(|backend| ConfigValue::Duration(backend.list_timeout)),
        ..BACKEND
    },
    Key {
        name: "stats_timeout",
        kind: KeyKind::Duration,
        example: "\"5s\"",
        limits: TIMEOUT,
        help: "Overrides the top-level `stats_timeout` for this backend.",
        value: Reader::Backend(|backend| ConfigValue::Duration(backend.stats_timeout)),
        ..BACKEND
    },
    Key {
        name: "stale_lists",
        kind: KeyKind::Duration,
        example: "\"5s\"",
        limits: AGE,
        help: "Overrides the top-level `stale_lists` for this backend.",
        value: Reader::Backend(|backend| ConfigValue::Duration(backend.stale_lists)),
        ..BACKEND
    },
    Key {
        name: "auto_register",
        kind: KeyKind::Boolean,
        default: Some("false"),
        help: "If true, criswitch registers each handler that the backend reports and that has no row in any file.",
        value: Reader::Backend(|backend| ConfigValue::Boolean(backend.auto_register)),
        ..BACKEND
    },
    Key {
        name: "required",
        kind: KeyKind::Boolean,
        default: Some("true"),
        applies: Applies::NextStart,
        help: "Set to false for a runtime that is new on this node. Then lists do not wait for the backend, and omit the backend until it answers. If \
               true, lists wait for the backend (`start_wait`) and fail until it has been listed, because it may have pods of \
               the kubelet from before criswitch.",
        value: Reader::Backend(|backend| ConfigValue::Boolean(backend.required)),
        ..BACKEND
    },
    Key {
        name: "user",
        kind: KeyKind::Text("user"),
        example: users::BACKEND_EXAMPLE,
        help: users::BACKEND_HELP,
        value: Reader::Backend(|backend| ConfigValue::User(backend.user)),
        ..BACKEND
    },
    Key {
        table: "log",
        name: "log.level",
        kind: KeyKind::Text("levels"),
        default: Some("info"),
        help: "The most verbose level that is written: off, error, warn, info, debug or trace. warn shows changes \
               that fail, with pod and cause. info also shows changes that succeed (pods and containers that start \
               and end, backends up and down). debug also shows calls that only read. trace also shows the kubelet's \
               polling. Modules of criswitch may have levels of their own: \"info,session=debug,backend=trace\".",
        value: Reader::Config(|config| ConfigValue::text(&config.log.levels)),
        ..KEY
    },
    Key {
        table: "log",
        name: "log.format",
        kind: KeyKind::Text("format"),
        default: Some("auto"),
        applies: Applies::Restart,
        help: "The format of log lines. text: for people, with the time, coloured on a terminal. json: one object in \
               each line, with `message`, `trace_id` and so on. journald: each line begins with its priority, which \
               systemd's journal reads. auto: journald if systemd has connected standard error to the journal, else \
               text.",
        value: Reader::Config(|config| ConfigValue::text(config.log.format.as_ref())),
        ..KEY
    },
    Key {
        table: "metrics",
        name: "metrics.listen",
        kind: KeyKind::Text("socket path or address"),
        default: Some(""),
        example: "\"127.0.0.1:9199\"",
        applies: Applies::Restart,
        help: "The address for metrics (GET /metrics, Prometheus' text format): the path of a Unix socket, or an \
               address such as \"127.0.0.1:9199\" or \"0.0.0.0:9199\". Only root can read the Unix socket. The path \
               must differ from `listen` and from every backend's socket. Every client that reaches the address can \
               read the metrics; every user of the node reaches a loopback address. \"\" means no metrics. Under \
               systemd, enable `criswitch-metrics.socket` instead and restart criswitch.service.",
        value: Reader::Config(|config| {
            ConfigValue::Text(config.metrics.as_ref().map(ToString::to_string))
        }),
        ..KEY
    },
];
