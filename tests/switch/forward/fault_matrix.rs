//! The time that a fault of one backend costs the node. Under each fault, the tests measure every RPC for another
//! backend, and the loops in which the kubelet handles all pods one after the other.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::{self, Patience, ROWS, Row};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{ID_CALLS, text_of};
use crate::faults::{directly, hang, runc_and_kata};
use crate::support::{
    IMAGE, RawReply, Rig, container_config, frame, frame_raw, image_spec, pod_config,
};

/// The time limit of a call that needs no answer from the faulty backend, and of every call once criswitch knows the
/// fault.
const AT_ONCE: Duration = Duration::from_millis(100);
/// The time limit of the first calls after the fault: `list_timeout`, plus the time for an answer.
const IN_TIME: Duration = Duration::from_millis(2100);

/// How often a test runs the loops.
const RUNS: usize = 3;
/// The name of kata's pod.
const NAME_OF_KATA: &str = "db";
/// An image that no container uses.
const UNUSED: &str = "unused:1";
/// An image that a pod gets before its first container, so that criswitch does not remove it.
const PULLED: &str = "pulled:1";
const PROFILE: &str = "registry.example/profile@sha256:1";

/// The RPCs of [`Node::send_all`] whose reply may be an error, each with the reason.
const MAY_FAIL: &[(&str, &str)] = &[
    (
        "ListSecurityProfiles",
        "criswitch caches no list of profiles, and a list without kata's would say that kata has none",
    ),
    ("RemoveSecurityProfile", "kata may have the profile"),
];

/// A fault of the backend kata.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The process is stopped, as by SIGSTOP.
    Stopped,
    /// Only this RPC has no answer.
    Hangs(&'static Row),
    /// Only the lists have no answer.
    ListsHang,
    /// Nothing listens on the socket.
    Down,
}

impl Fault {
    /// Whether only this RPC hangs, and a call of it changes something. Such a call lasts as long as its client waits,
    /// because it may take long: see docs/decisions/long-calls.md.
    fn is_of_a_change(self, rpc: &str) -> bool {
        matches!(self, Fault::Hangs(row) if row.name == rpc && row.patience == Patience::Change)
    }
}

/// The backend whose item a call is for.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Runc,
    Kata,
}
use Whose::{Kata, Runc};

/// The loops of kubelet 1.37 that have one worker for the whole node, each with its calls in order. They are in
/// pleg/generic.go, images/puller.go, logs/container_log_manager.go, kuberuntime/kuberuntime_gc.go,
/// images/image_gc_manager.go and prober/worker.go. In each loop, a call for kata comes before the calls for the other
/// backend.
const LOOPS: &[(&str, &[(&str, Whose)])] = &[
    (
        "relist",
        &[
            ("ListPodSandbox", Runc),
            ("ListContainers", Runc),
            ("PodSandboxStatus", Kata),
            ("ContainerStatus", Kata),
            ("PodSandboxStatus", Runc),
            ("ContainerStatus", Runc),
        ],
    ),
    (
        "puller",
        &[
            ("PullImage", Kata),
            ("ImageStatus", Runc),
            ("PullImage", Runc),
        ],
    ),
    (
        "log rotation",
        &[
            ("ListContainers", Runc),
            ("ContainerStatus", Kata),
            ("ReopenContainerLog", Kata),
            ("ContainerStatus", Runc),
            ("ReopenContainerLog", Runc),
        ],
    ),
    (
        "deletion of containers",
        &[
            ("ContainerStatus", Kata),
            ("RemoveContainer", Kata),
            ("RemoveContainer", Runc),
        ],
    ),
    (
        "image garbage collection",
        &[
            ("ImageFsInfo", Runc),
            ("ListImages", Runc),
            ("ListContainers", Runc),
            ("ContainerStatus", Kata),
            ("ContainerStatus", Runc),
            ("RemoveImage", Runc),
        ],
    ),
    (
        "new pod",
        &[
            ("RunPodSandbox", Runc),
            ("CreateContainer", Runc),
            ("StartContainer", Runc),
        ],
    ),
    ("exec probe", &[("ExecSync", Runc)]),
];

/// Two runtimes with a pod and a container each. The kubelet has already asked for their statuses and lists.
struct Node {
    rig: Rig,
    /// The name of the pod of the other backend.
    name: RefCell<String>,
    runc: RefCell<(String, String)>,
    kata: (String, String),
    /// Containers of another pod of kata that may be removed.
    spare: RefCell<Vec<String>>,
    /// The number of unique names that requests have used so far.
    names: Cell<usize>,
    /// The calls that failed or took too long.
    wrong: RefCell<Vec<String>>,
}

impl Node {
    async fn start() -> Node {
        let rig = runc_and_kata().await;
        let kata = rig.run("kata", NAME_OF_KATA).await;
        let pod = rig.run_pod("kata", "spare").await;
        let mut spare = Vec::new();
        for number in 0..RUNS {
            spare.push(rig.create(&pod, &format!("spare-{number}")).await);
        }
        let node = Node {
            rig,
            name: RefCell::default(),
            runc: RefCell::default(),
            kata,
            spare: RefCell::new(spare),
            names: Cell::default(),
            wrong: RefCell::default(),
        };
        node.run_loops(AT_ONCE, None).await;
        node
    }

    async fn break_kata(&self, fault: Fault) {
        let kata = self.rig.sim("kata");
        match fault {
            Fault::Stopped => hang(kata),
            Fault::Hangs(row) => kata.hold(row.name),
            Fault::ListsHang => {
                let lists = ROWS.iter().map(|row| row.name);
                let lists =
                    lists.filter(|name| name.starts_with("List") || name.starts_with("Stream"));
                lists.for_each(|name| kata.hold(name));
            }
            Fault::Down => kata.stop().await,
        }
    }

    /// Begins a call of this RPC for an item of kata, and waits until the call hangs.
    async fn begin_call_of_kata(&self, row: &Row) -> JoinSet<RawReply> {
        let mut begun = JoinSet::new();
        if let Some(call) = ID_CALLS.iter().find(|call| call.rpc == row.name)
            && row.patience != Patience::Short
        {
            let (client, (pod, container)) = ((*self.rig).raw().await, &self.kata);
            let request = call.request(call.pick(pod, container));
            let path = row.path();
            begun.spawn(async move { client.call(&path, &[], request).await });
            self.rig.sim("kata").until_held(row.name).await;
        }
        begun
    }

    /// Sends a call for an item of this backend, or for the node. Returns the reply and how long it took.
    async fn send(&self, rpc: &str, whose: Whose) -> (RawReply, Duration) {
        let request = self.request(rpc, whose).await;
        let begun = Instant::now();
        let deadline = [("grpc-timeout", "120S")];
        let reply = self.rig.raw(&path_of(rpc), &deadline, request).await;
        (reply, begun.elapsed())
    }

    fn new_name(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("new-{}", self.names.get())
    }

    /// Runs a pod on the other backend. The following calls for that backend use this pod.
    async fn run_pod(&self) {
        let name = self.new_name();
        self.runc.replace(self.rig.run("runc", &name).await);
        self.name.replace(name);
    }

    async fn request(&self, rpc: &str, whose: Whose) -> Bytes {
        let name = self.new_name();
        let (pod, container) = match whose {
            Runc => self.runc.borrow().clone(),
            Kata => self.kata.clone(),
        };
        match rpc {
            "RunPodSandbox" => frame(&cri::RunPodSandboxRequest {
                config: Some(pod_config(&name)),
                runtime_handler: "runc".to_owned(),
            }),
            "CreateContainer" => frame(&cri::CreateContainerRequest {
                pod_sandbox_id: pod.clone(),
                config: Some(container_config(&name, IMAGE)),
                sandbox_config: None,
            }),
            "RemoveContainer" if whose == Kata => {
                let container_id = self.spare.borrow_mut().pop().unwrap();
                frame(&cri::RemoveContainerRequest { container_id })
            }
            "RestorePod" => frame(&cri::RestorePodRequest {
                config: Some(pod_config(&name)),
                runtime_handler: "runc".to_owned(),
                ..Default::default()
            }),
            "StartContainer" | "StopContainer" | "RemoveContainer" => {
                let container_id = self.rig.create(&pod, &name).await;
                frame(&cri::StartContainerRequest { container_id })
            }
            "StopPodSandbox" | "RemovePodSandbox" => {
                let pod_sandbox_id = self.rig.run_pod("runc", &name).await;
                frame(&cri::StopPodSandboxRequest { pod_sandbox_id })
            }
            "ImageStatus" => frame(&cri::ImageStatusRequest {
                image: Some(cri::ImageSpec {
                    annotations: pod_config(&self.name.borrow()).annotations,
                    ..image_spec(PULLED)
                }),
                verbose: false,
            }),
            "PullImage" => {
                let name = match whose {
                    Runc => self.name.borrow().clone(),
                    Kata => NAME_OF_KATA.to_owned(),
                };
                frame(&cri::PullImageRequest {
                    image: Some(image_spec(PULLED)),
                    auth: None,
                    sandbox_config: Some(pod_config(&name)),
                })
            }
            "PullSecurityProfile" => frame(&cri::PullSecurityProfileRequest {
                image: Some(image_spec(PROFILE)),
                sandbox_config: Some(pod_config(&self.name.borrow())),
                ..Default::default()
            }),
            "RemoveImage" => {
                let unused = cri::PullImageRequest {
                    image: Some(image_spec(UNUSED)),
                    ..Default::default()
                };
                let runc = directly(self.rig.sim("runc"));
                runc.images().pull_image(unused).await.unwrap();
                frame(&cri::RemoveImageRequest {
                    image: Some(image_spec(UNUSED)),
                })
            }
            _ => match ID_CALLS.iter().find(|call| call.rpc == rpc) {
                Some(call) => call.request(call.pick(&pod, &container)),
                None => frame_raw(b""),
            },
        }
    }

    /// Runs all loops once. Each call must end within `limit`. Calls must succeed unless [`Fault::may_fail`] allows an
    /// error.
    async fn run_loops(&self, limit: Duration, fault: Option<Fault>) {
        self.run_pod().await;
        for (name, calls) in LOOPS {
            for (rpc, whose) in *calls {
                if *whose == Kata && fault.is_some_and(|fault| fault.is_of_a_change(rpc)) {
                    continue;
                }
                let (reply, took) = self.send(rpc, *whose).await;
                let may_fail = fault.is_some() && may_fail(rpc, *whose);
                if took > limit || reply.code() != Code::Ok && !may_fail {
                    let text = text_of(&reply);
                    self.note(format!("{name}: {rpc} took {took:?} of {limit:?}: {text}"));
                }
            }
        }
    }

    /// Sends every RPC for the other backend or the node. Each reply must come within `limit`, and must be OK unless
    /// the RPC is one of [`MAY_FAIL`].
    async fn send_all(&self, limit: Duration) {
        self.run_pod().await;
        for row in ROWS.iter().filter(|row| row.name != rpc::EVENTS.name) {
            let (reply, took) = self.send(row.name, Runc).await;
            let may_fail = MAY_FAIL.iter().any(|(rpc, _)| *rpc == row.name);
            if took > limit || reply.code() != Code::Ok && !may_fail {
                let text = text_of(&reply);
                self.note(format!("{} took {took:?} of {limit:?}: {text}", row.name));
            }
        }
        // The stream of events has no end, so the test only measures the time until the stream begins.
        let begun = Instant::now();
        let mut runtime = self.rig.runtime();
        let stream = runtime.get_container_events(cri::GetEventsRequest {}).await;
        if let Err(status) = stream {
            self.note(format!("no events: {status}"));
        }
        if begun.elapsed() > limit {
            self.note(format!("events began after {:?}", begun.elapsed()));
        }
    }

    fn note(&self, wrong: String) {
        self.wrong.borrow_mut().push(wrong);
    }
}

/// Whether a call may fail under a fault: a call for kata that no kept status answers.
fn may_fail(rpc: &str, whose: Whose) -> bool {
    whose == Kata && !rpc.ends_with("Status")
}

fn path_of(rpc: &str) -> String {
    let row = ROWS.iter().find(|row| row.name == rpc);
    row.unwrap_or_else(|| panic!("no RPC {rpc}")).path()
}

/// Checks the loops right after a fault of kata, and the loops and each RPC once the fault is known.
async fn check(fault: Fault) {
    let node = Node::start().await;
    node.break_kata(fault).await;
    let _hung = match fault {
        Fault::Hangs(row) => node.begin_call_of_kata(row).await,
        _ => JoinSet::new(),
    };
    node.run_loops(IN_TIME, Some(fault)).await;
    node.send_all(IN_TIME).await;
    node.run_loops(AT_ONCE, Some(fault)).await;
    node.send_all(AT_ONCE).await;
    let wrong = node.wrong.take();
    assert!(wrong.is_empty(), "{fault:?}: {wrong:#?}");
}

#[tokio::test]
async fn a_stopped_backend_costs_the_node_one_wait() {
    check(Fault::Stopped).await;
}

#[tokio::test]
async fn a_backend_whose_lists_hang_costs_the_node_one_wait() {
    check(Fault::ListsHang).await;
}

#[tokio::test]
async fn a_backend_that_is_down_costs_the_node_nothing() {
    check(Fault::Down).await;
}

/// Checks the hang of each RPC whose name contains `with` and none of the texts in `others`. The RPCs are split over
/// several tests, so that the tests run in parallel.
async fn check_rpcs(with: &str, others: &[&str]) {
    let is_other = |row: &&Row| others.iter().any(|other| row.name.contains(other));
    let rows = ROWS.iter().filter(|row| row.name.contains(with));
    for row in rows.filter(|row| !is_other(row)) {
        check(Fault::Hangs(row)).await;
    }
}

#[tokio::test]
async fn one_rpc_for_containers_that_hangs_costs_the_node_one_wait() {
    check_rpcs("Container", &[]).await;
}

#[tokio::test]
async fn one_rpc_for_pods_that_hangs_costs_the_node_one_wait() {
    check_rpcs("PodSandbox", &["Container"]).await;
}

#[tokio::test]
async fn any_other_rpc_that_hangs_costs_the_node_one_wait() {
    check_rpcs("", &["Container", "PodSandbox"]).await;
}
