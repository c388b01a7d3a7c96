//! The kinds of work that are measured: which calls the client makes, the replies, and the number of calls.

use bytes::Bytes;
use clap::ValueEnum;
use criswitch_cri::codec::cri;
use prost::Message;

use crate::events;
use crate::items;
use crate::support::{frame, frame_raw};

/// The size of the configuration in a `CreateContainer` request, in bytes.
const CREATE_BYTES: usize = 10 << 10;
/// The number of calls in a round with small replies.
const CALLS: usize = 20_000;
/// The number of events in a round: those of ten seconds.
const EVENTS: usize = 10 * events::A_SECOND;
/// The approximate size of a listed container, in bytes.
const CONTAINER_BYTES: usize = 1000;
/// The bytes of all replies together in a round with large replies.
const ROUND_BYTES: usize = 2 << 30;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// `ContainerStatus` with a reply of 200 bytes, one call at a time.
    Unary,
    /// `ContainerStatus` with a reply of 200 bytes, 16 calls in flight.
    #[value(name = "unary-x16")]
    UnaryX16,
    /// `ContainerStatus` with a reply of 10 kB, one call at a time.
    #[value(name = "unary-10k")]
    Unary10k,
    /// `ContainerStatus` with a reply of 10 kB, 16 calls in flight.
    #[value(name = "unary-10k-x16")]
    Unary10kX16,
    /// `CreateContainer` with a request of 10 kB.
    Create,
    /// `ListContainers` of one backend with 110 containers.
    List110,
    /// `ListContainers` of one backend with 1000 containers.
    List1000,
    /// `ListContainers` of one backend with 10,000 containers.
    List10000,
    /// `ListContainers` of one backend with 50,000 containers.
    List50000,
    /// Like `List1000`, but the state of one container changes between two replies.
    #[value(name = "list1000-changed")]
    List1000Changed,
    /// Like `List1000`, but every second reply has the containers in the reverse order. containerd's order is different
    /// in each list.
    #[value(name = "list1000-reordered")]
    List1000Reordered,
    /// Like `Unary`, but the backend has 50,000 containers.
    #[value(name = "unary-of-50000")]
    UnaryOf50000,
    /// `ListContainers` of two backends with 500 containers each.
    Merge2,
    /// `ListContainers` of four backends with 250 containers each.
    Merge4,
    /// A kubelet's calls on a node with 110 pods on two backends.
    Poll110,
    /// A kubelet's calls on a node with 500 pods on two backends.
    Poll500,
    /// A kubelet's calls on a node with 1000 pods, 2000 containers, on four backends.
    Poll1000,
    /// `GetContainerEvents` of two backends.
    Streams,
    /// The start of a subject with four backends until its first correct reply.
    Start,
}

impl Work {
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    pub fn backends(self) -> usize {
        match self {
            Work::Merge2 | Work::Poll110 | Work::Poll500 | Work::Streams => 2,
            Work::Merge4 | Work::Poll1000 | Work::Start => 4,
            _ => 1,
        }
    }

    /// The number of containers of each backend.
    pub fn containers(self) -> usize {
        match self {
            Work::List110 | Work::Poll110 => 110,
            Work::List1000 | Work::List1000Changed | Work::List1000Reordered => 1000,
            Work::List10000 => 10_000,
            Work::List50000 | Work::UnaryOf50000 => 50_000,
            Work::Merge2 | Work::Poll500 | Work::Poll1000 => 500,
            Work::Merge4 => 250,
            _ => 10,
        }
    }

    /// Whether the lists are larger than the largest message that a kubelet accepts.
    pub fn is_large(self) -> bool {
        self.containers() > 10_000
    }

    pub fn in_flight(self) -> usize {
        match self {
            Work::UnaryX16 | Work::Unary10kX16 => 16,
            _ => 1,
        }
    }

    /// Whether the calls are a kubelet's: lists every second, and `Status` every five seconds.
    pub fn is_poll(self) -> bool {
        matches!(self, Work::Poll110 | Work::Poll500 | Work::Poll1000)
    }

    /// Whether the instructions of a call are counted.
    pub fn is_counted(self) -> bool {
        use Work::{List1000, List1000Changed, List1000Reordered, Merge2, Unary};
        matches!(
            self,
            Unary | List1000 | List1000Changed | List1000Reordered | Merge2
        )
    }

    /// The number of calls, polls, events or starts in a round.
    pub fn calls(self) -> usize {
        match self {
            Work::Poll110 | Work::Poll500 => 60,
            Work::Poll1000 => 120,
            Work::Streams => EVENTS,
            Work::Start => 20,
            _ if self.rpcs() == ["ListContainers"] => {
                CALLS.min(ROUND_BYTES / (self.backends() * self.containers() * CONTAINER_BYTES))
            }
            _ => CALLS,
        }
    }

    /// The RPCs that the client calls one after the other. For `Streams`, these calls only show that the subject
    /// has started.
    pub fn rpcs(self) -> &'static [&'static str] {
        match self {
            Work::Unary
            | Work::UnaryX16
            | Work::Unary10k
            | Work::Unary10kX16
            | Work::UnaryOf50000 => &["ContainerStatus"],
            Work::Create => &["CreateContainer"],
            Work::Poll110 | Work::Poll500 | Work::Poll1000 => &["ListPodSandbox", "ListContainers"],
            _ => &["ListContainers"],
        }
    }

    /// Returns the request as a gRPC message with its prefix.
    pub fn request(rpc: &str) -> Bytes {
        match rpc {
            "ContainerStatus" => frame(&cri::ContainerStatusRequest {
                container_id: items::container_id(0, 0),
                verbose: false,
            }),
            "CreateContainer" => frame(&cri::CreateContainerRequest {
                pod_sandbox_id: items::pod_id(0, 0),
                config: Some(cri::ContainerConfig {
                    log_path: "x".repeat(CREATE_BYTES),
                    ..Default::default()
                }),
                sandbox_config: None,
            }),
            _ => frame_raw(&[]),
        }
    }

    /// The number of different replies of a backend to one RPC.
    pub fn replies_of_a_backend(self) -> usize {
        match self {
            Work::List1000Changed | Work::List1000Reordered => 2,
            _ => 1,
        }
    }

    /// Returns the replies of one backend to this RPC, in the order in which calls get them. Each reply is a gRPC
    /// message with its prefix.
    pub fn replies(self, backend: usize, rpc: &str) -> Vec<Bytes> {
        let one = match (rpc, self) {
            ("ContainerStatus", Work::Unary10k | Work::Unary10kX16) => status(10 << 10),
            ("ContainerStatus", _) => status(200),
            ("CreateContainer", _) => frame(&cri::CreateContainerResponse {
                container_id: items::container_id(0, 1),
            }),
            ("ListPodSandbox", _) => {
                let pods = 0..self.containers() / items::CONTAINERS_OF_A_POD;
                frame(&cri::ListPodSandboxResponse {
                    items: pods.map(|at| items::pod(backend, at)).collect(),
                })
            }
            ("ListContainers", _) => return self.lists(backend),
            ("Version", _) => frame(&cri::VersionResponse {
                runtime_name: format!("runtime-{backend}"),
                ..Default::default()
            }),
            // The replies to all other RPCs are empty messages.
            _ => frame_raw(&[]),
        };
        vec![one]
    }

    fn lists(self, backend: usize) -> Vec<Bytes> {
        let containers = (0..self.containers()).map(|at| items::container(backend, at));
        let containers = containers.collect();
        let mut list = cri::ListContainersResponse { containers };
        let mut lists = vec![frame(&list)];
        match self {
            Work::List1000Changed => {
                let changed = &mut list.containers[self.containers() / 2];
                changed.state = cri::ContainerState::ContainerExited.into();
                lists.push(frame(&list));
            }
            Work::List1000Reordered => {
                list.containers.reverse();
                lists.push(frame(&list));
            }
            _ => {}
        }
        lists
    }
}

/// Makes a `ContainerStatusResponse` of this many bytes.
fn status(bytes: usize) -> Bytes {
    let of = |message: String| cri::ContainerStatusResponse {
        status: Some(cri::ContainerStatus {
            id: items::container_id(0, 0),
            message,
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut filler = String::new();
    while of(filler.clone()).encoded_len() < bytes {
        filler.push('x');
    }
    frame(&of(filler))
}
