//! A schedule: the steps in their order. The seed determines the schedule. A schedule stays valid if any of its steps
//! are removed.

use std::fmt;

use criswitch_cri::rpc::{Goes, ROWS, Row};
use fastrand::Rng;
use tonic::Code;

use super::disk::Spoil;
use super::files::{Edit, Mistake, RUNTIMES};
use super::filter::{Narrow, Takes};
use super::lacking::{self, Lacking};
use super::offers::{self, Offer};

pub const TOPOLOGIES: usize = 5;
pub const CLIENTS: usize = 3;
/// The number of different images that pods use and clients ask for.
pub const IMAGES: u32 = 4;

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub topology: usize,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// A client begins a call.
    Call(Op),
    /// The client cancels one of its calls in flight.
    Cancel(u32),
    /// A fault of one of criswitch's backends, or of another runtime.
    Fault(usize, Fault),
    /// The configuration files are edited and reloaded. criswitch applies the files unless they have a mistake.
    Reload(Vec<Edit>, Option<Mistake>),
    /// criswitch is killed, and the next instance starts with the current files.
    RestartSwitch(Meanwhile),
    /// criswitch shuts down as on SIGTERM, and the next instance takes over its socket.
    HandOver(Meanwhile),
    /// The file of a backend becomes unwritable, as on a full disk, or writable again.
    FullDisk(usize, bool),
    /// An operator has criswitch forget a backend that is down.
    Forget(usize),
    /// The paused clock advances by this many milliseconds.
    Wait(u64),
}

/// An event after the end of one instance of criswitch and before the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    Nothing,
    /// The file of one of the backends is damaged.
    Spoilt(usize, Spoil),
    /// The register, which is the file with the names of all backends, is damaged.
    RegisterSpoilt(Spoil),
    /// The machine is rebooted. No pod is left, and the runtimes marked `true` do not start.
    Reboot([bool; RUNTIMES]),
    /// The disk with the state moves to another machine.
    OtherMachine,
    /// The next instance is killed during its start, and a further instance starts. The number is a bit mask: the
    /// killed instance has written the file of each backend whose bit is set, but not the register.
    KilledStart(u8),
}

/// A call of a schedule. Its ids are chosen when the call begins.
#[derive(Clone)]
pub struct Op {
    pub row: &'static Row,
    pub client: usize,
    /// `None` means no deadline.
    pub timeout_ms: Option<u64>,
    pub on: On,
    /// The filter of a list.
    pub narrow: Narrow,
    /// The handler of an image call, if any.
    pub handler: Option<u32>,
    /// The pod of an image call without a handler, if any.
    pub pod: Option<u32>,
    /// Selects the pod, container, handler or image that the call names.
    pub which: u32,
}

impl Op {
    /// A call for an existing pod, container or handler.
    pub fn plain(row: &'static Row, which: u32) -> Op {
        Op {
            row,
            client: 0,
            timeout_ms: Some(20_000),
            on: On::Existing,
            narrow: Narrow::Not,
            handler: None,
            pod: None,
            which,
        }
    }
}

/// Whether the pod, container or handler that a call names exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// An existing pod, container or handler.
    Existing,
    /// An existing pod or container, by the first half of its id.
    Short,
    /// A removed pod or container, or a handler of any table so far.
    Gone,
    /// A pod, container or handler that never existed.
    Nothing,
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// The process ends.
    Die,
    /// The runtime starts with the pods that it had.
    Start,
    /// The runtime starts and has lost everything.
    StartEmpty,
    /// The runtime starts with the pods that it had, and reports these handlers.
    Offer(Offer),
    /// The runtime starts with the pods that it had, as a version that lacks these RPCs.
    Lack(Lacking),
    /// The runtime accepts calls but answers none of them; `false` ends the fault.
    Hang(bool),
    /// The runtime answers all calls except those of this RPC; `None` ends the fault.
    HangRpc(Option<&'static str>),
    /// The runtime shuts its connections down and accepts new ones, as a server that is replaced does.
    GoAway,
    /// The runtime neither reads nor writes; `false` ends the fault.
    Freeze(bool),
    /// Each list takes this many milliseconds; `None` ends the delay.
    SlowLists(Option<u32>),
    /// The runtime writes at most this many bytes at once; 0 means no limit.
    Sip(u8),
    /// The next call that the runtime receives is damaged.
    Spoil(Damage),
    /// A pod is created without criswitch.
    Create,
    /// A pod is removed without criswitch.
    Lose(u32),
    /// The runtime lists pods and containers that other backends own, in wrong states; `false` ends the fault.
    Claim(bool),
    /// The runtime creates a pod with the uid and the names of another runtime's pod, and a creation time in the far
    /// future.
    Pose(u32),
    /// The runtime answers creates with ids of other backends and creates nothing, and its pods have creation times in
    /// the far future; `false` ends the fault.
    Imitate(bool),
    /// The runtime also lists a pod of another runtime, with its containers, as a second socket of that runtime does.
    /// `true` means that the copy has a different creation time.
    Copy(u32, bool),
    /// The runtime no longer lists pods of other runtimes.
    DropCopies,
    /// The runtime lists each new pod of another runtime from its creation on; `false` ends the fault.
    Mirror(bool),
    /// The runtime starts as another runtime's second socket: it lists only what that runtime lists.
    Serve(usize),
    /// The runtime answers calls for these lists with an error; `None` ends the fault.
    Fail(Option<Failing>),
    /// Each list of the runtime has an item that cannot be decoded; `None` ends the fault.
    Garble(Option<Garbled>),
    /// The runtime's event streams end, with success or with an error, and nothing else changes.
    EndEvents(bool),
}

/// The calls that a runtime answers with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Lists of pods, containers and images.
    pub lists: bool,
    pub stats: bool,
    pub code: Code,
}

/// An item that clients cannot use. The status, the version, the file systems and the events of the runtime then have a
/// text that is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbled {
    /// A label is not UTF-8.
    Label,
    /// A label is cut off.
    CutLabel,
    /// The metadata are cut off.
    CutMetadata,
    /// The item has no metadata, or stats have no attributes.
    NoMetadata,
    /// The labels have the type of a number, which prost reads and Go does not.
    OddLabels,
}

/// The damage of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The backend dies and does not execute the call.
    DieBefore,
    /// The backend executes the call and dies before it replies.
    DieAfter,
    /// The backend dies after half of its reply.
    DieWithin,
    /// The stream is reset, and the backend does not execute the call.
    ResetBefore,
    /// The runtime rejects the stream before it reads the call, so that a client may send the call again.
    RejectStream,
    /// The backend executes the call, and the stream is reset.
    ResetAfter,
    /// The stream is reset after half of the reply.
    ResetWithin,
    /// The runtime executes the call and replies this many milliseconds later.
    Late(u32),
    /// The backend rejects the call.
    Reject,
    /// The backend executes the call, but the reply is an error, so a created pod is left behind.
    FailAfter,
    /// The reply lacks its last byte but has status 0.
    Cut,
    /// The reply has no status.
    NoStatus,
    /// The reply comes in frames of a few bytes, which is valid.
    Split,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let length = rng.usize(15..50);
        let topology = rng.usize(..TOPOLOGIES);
        let mut steps: Vec<Step> = vec![
            Step::Call(run(&mut rng)),
            Step::Call(run(&mut rng)),
            Step::Wait(1),
        ];
        // In one of four schedules, a runtime is old from the start: it lacks RPCs.
        if rng.u8(..4) == 0 {
            steps.push(Step::Fault(
                rng.usize(..60),
                Fault::Lack(lacking::any(&mut rng)),
            ));
        }
        while steps.len() < length {
            step(&mut rng, &mut steps);
        }
        Plan {
            seed,
            topology,
            steps,
        }
    }
}

fn step(rng: &mut Rng, steps: &mut Vec<Step>) {
    match rng.u32(..106) {
        100..103 => share(rng, steps),
        104..106 => hang(rng, steps),
        103 => steps.push(Step::Forget(rng.usize(..60))),
        0..3 => poll(rng, steps),
        3..57 => {
            steps.push(Step::Call(op(rng)));
            // Most calls end before the next one begins.
            if rng.u8(..4) > 0 {
                steps.push(Step::Wait(1));
            }
        }
        57..61 => steps.push(Step::Cancel(rng.u32(..))),
        61..76 => steps.push(Step::Fault(rng.usize(..60), fault(rng))),
        76 => steps.push(Step::FullDisk(rng.usize(..60), rng.u8(..3) > 0)),
        77..84 => steps.push(reload(rng)),
        84..87 => steps.push(Step::RestartSwitch(meanwhile(rng))),
        87..89 => steps.push(Step::HandOver(meanwhile(rng))),
        89..92 => steps.push(Step::Wait(rng.u64(1..400))),
        92..98 => steps.push(Step::Wait(rng.u64(400..6000))),
        _ => steps.push(Step::Wait(rng.u64(6000..60_000))),
    }
}

/// Adds two calls for all stats, and a fault of a backend between them.
fn poll(rng: &mut Rng, steps: &mut Vec<Step>) {
    let rows: Vec<_> = ROWS.iter().filter(|row| row.is_stats()).collect();
    let row = rows[rng.usize(..rows.len())];
    let poll = Op {
        timeout_ms: None,
        narrow: Narrow::Not,
        ..call(rng, row)
    };
    let fault = match rng.u32(..6) {
        4 => Fault::Fail(failing(rng)),
        5 => Fault::Garble(garbled(rng)),
        0 => Fault::Die,
        1 => Fault::Hang(true),
        2 => Fault::SlowLists(Some(rng.u32(1..6000))),
        _ => Fault::Spoil(damage(rng)),
    };
    let fault = [Step::Fault(rng.usize(..60), fault)];
    let poll = [Step::Call(poll), Step::Wait(1)];
    steps.extend(poll.iter().chain(&fault).chain(&poll).cloned());
}

/// Adds steps in which a backend stops answering all calls, or the calls of one RPC, while calls are in flight. The
/// backend then is forgotten, or recovers.
fn hang(rng: &mut Rng, steps: &mut Vec<Step>) {
    let at = rng.usize(..60);
    let is_whole = rng.bool();
    let (begins, ends) = if is_whole {
        (Fault::Hang(true), Fault::Hang(false))
    } else {
        (Fault::HangRpc(Some(rpc(rng))), Fault::HangRpc(None))
    };
    let calls = |rng: &mut Rng, steps: &mut Vec<Step>| {
        for _ in 0..rng.usize(1..4) {
            let call = if rng.bool() { run(rng) } else { op(rng) };
            steps.push(Step::Call(Op {
                timeout_ms: None,
                ..call
            }));
        }
    };
    calls(rng, steps);
    steps.push(Step::Fault(at, begins));
    calls(rng, steps);
    steps.push(Step::Wait(rng.u64(1..12_000)));
    calls(rng, steps);
    match rng.u32(..3) {
        0 => steps.extend([Step::Wait(rng.u64(1..8000)), Step::Forget(at)]),
        1 => steps.push(Step::Wait(rng.u64(50_000..90_000))),
        _ => {}
    }
    steps.push(Step::Fault(at, ends));
}

fn rpc(rng: &mut Rng) -> &'static str {
    ROWS[rng.usize(..ROWS.len())].name
}

/// Adds steps that make two backends list one pod, and then make one of them stop listing it.
fn share(rng: &mut Rng, steps: &mut Vec<Step>) {
    let (first, second) = (rng.usize(..60), rng.usize(..60));
    let list = |rng: &mut Rng, steps: &mut Vec<Step>| {
        for name in ["ListPodSandbox", "ListContainers"] {
            let op = Op {
                timeout_ms: None,
                narrow: Narrow::Not,
                ..call(rng, row(name))
            };
            steps.extend([Step::Call(op), Step::Wait(1)]);
        }
    };
    if rng.bool() {
        steps.push(Step::Fault(first, Fault::Create));
    }
    list(rng, steps);
    let copy = Fault::Copy(rng.u32(..), rng.u8(..4) == 0);
    steps.push(Step::Fault(second, copy));
    list(rng, steps);
    let die = |at| Step::Fault(at, Fault::Die);
    match rng.u32(..6) {
        0 => steps.extend([die(first), Step::Fault(first, Fault::StartEmpty)]),
        1 => steps.push(Step::Fault(first, Fault::Serve(rng.usize(..RUNTIMES)))),
        2 => steps.extend([die(first), Step::Wait(1000), Step::Forget(first)]),
        3 => steps.push(Step::Fault(second, Fault::DropCopies)),
        4 => steps.push(reload(rng)),
        _ => {}
    }
    if rng.bool() {
        steps.push(Step::Wait(rng.u64(1..3000)));
    }
    list(rng, steps);
    if rng.bool() {
        steps.push(die(if rng.bool() { first } else { second }));
    }
    match rng.u32(..3) {
        0 => steps.push(Step::RestartSwitch(Meanwhile::Nothing)),
        1 => steps.push(Step::HandOver(Meanwhile::Nothing)),
        _ => {}
    }
    list(rng, steps);
}

fn meanwhile(rng: &mut Rng) -> Meanwhile {
    match rng.u32(..22) {
        0..12 => Meanwhile::Nothing,
        12..16 => Meanwhile::Spoilt(rng.usize(..60), Spoil::any(rng)),
        16 => Meanwhile::RegisterSpoilt(Spoil::any(rng)),
        17..19 => Meanwhile::Reboot([(); RUNTIMES].map(|()| rng.bool())),
        19 => Meanwhile::OtherMachine,
        _ => Meanwhile::KilledStart(rng.u8(..)),
    }
}

fn reload(rng: &mut Rng) -> Step {
    let edits = (0..rng.usize(0..4)).map(|_| Edit::any(rng)).collect();
    let mistake = (rng.u8(..6) == 0).then(|| Mistake::any(rng));
    Step::Reload(edits, mistake)
}

fn fault(rng: &mut Rng) -> Fault {
    match rng.u32(..64) {
        58..60 => Fault::GoAway,
        60..62 => Fault::HangRpc(Some(rpc(rng))),
        62..64 => Fault::HangRpc(None),
        46..49 => Fault::Copy(rng.u32(..), rng.u8(..4) == 0),
        49 => Fault::DropCopies,
        50..52 => Fault::Mirror(rng.bool()),
        52 => Fault::Serve(rng.usize(..RUNTIMES)),
        53..56 => Fault::Fail(failing(rng)),
        56..58 => Fault::Garble(garbled(rng)),
        0..3 => Fault::Die,
        3..8 => Fault::Start,
        30..32 => Fault::Offer(offers::any(rng)),
        32..35 => Fault::Lack(lacking::any(rng)),
        35..37 => Fault::EndEvents(rng.bool()),
        37..40 => Fault::Claim(rng.u8(..4) > 0),
        40..43 => Fault::Imitate(rng.u8(..4) > 0),
        43..46 => Fault::Pose(rng.u32(..)),
        8 => Fault::StartEmpty,
        9..11 => Fault::Hang(true),
        11..14 => Fault::Hang(false),
        14 => Fault::Freeze(true),
        15..17 => Fault::Freeze(false),
        17 => Fault::SlowLists(Some(rng.u32(1..6000))),
        18..20 => Fault::SlowLists(None),
        20 => Fault::Sip(rng.u8(0..40)),
        21 => Fault::Create,
        22 => Fault::Lose(rng.u32(..)),
        _ => Fault::Spoil(damage(rng)),
    }
}

fn failing(rng: &mut Rng) -> Option<Failing> {
    let codes = [Code::Unknown, Code::Internal, Code::PermissionDenied];
    let failing = Failing {
        lists: rng.bool(),
        stats: rng.bool(),
        code: codes[rng.usize(..codes.len())],
    };
    (failing.lists || failing.stats).then_some(failing)
}

fn garbled(rng: &mut Rng) -> Option<Garbled> {
    match rng.u32(..6) {
        0 => Some(Garbled::Label),
        1 => Some(Garbled::CutLabel),
        2 => Some(Garbled::CutMetadata),
        3 => Some(Garbled::NoMetadata),
        4 => Some(Garbled::OddLabels),
        _ => None,
    }
}

fn damage(rng: &mut Rng) -> Damage {
    match rng.u32(..13) {
        12 => Damage::RejectStream,
        0 => Damage::DieBefore,
        1 => Damage::DieAfter,
        2 => Damage::DieWithin,
        3 => Damage::ResetBefore,
        4 => Damage::ResetAfter,
        5 => Damage::ResetWithin,
        6 => Damage::Late(rng.u32(1..5000)),
        7 => Damage::Reject,
        8 => Damage::Cut,
        9 => Damage::NoStatus,
        10 => Damage::FailAfter,
        _ => Damage::Split,
    }
}

fn run(rng: &mut Rng) -> Op {
    call(rng, row("RunPodSandbox"))
}

fn op(rng: &mut Rng) -> Op {
    let name = match rng.u32(..100) {
        0..12 => "RunPodSandbox",
        12..20 => "CreateContainer",
        20..24 => "StopPodSandbox",
        24..29 => "RemovePodSandbox",
        29..32 => "RemoveContainer",
        32..42 => "ListPodSandbox",
        42..50 => "ListContainers",
        50..53 => "StreamPodSandboxes",
        53..55 => "StreamContainers",
        55..60 => "PodSandboxStatus",
        60..64 => "ContainerStatus",
        64..68 => "Status",
        68..71 => "ImageStatus",
        71..73 => "ListImages",
        73..75 => "PullImage",
        75..77 => "UpdateRuntimeConfig",
        77..79 => "GetContainerEvents",
        79..81 => "ListPodSandboxStats",
        81..83 => "PullImage",
        83..85 => "ImageStatus",
        _ => ROWS[rng.usize(..ROWS.len())].name,
    };
    call(rng, row(name))
}

fn call(rng: &mut Rng, row: &'static Row) -> Op {
    let on = match rng.u32(..20) {
        0 => On::Gone,
        1 => On::Nothing,
        2 => On::Short,
        _ => On::Existing,
    };
    let timeout_ms = match rng.u32(..10) {
        0 => Some(10 * rng.u64(1..50)),
        1..4 => Some(1000 * rng.u64(1..15)),
        4 => Some(120_000),
        _ => None,
    };
    Op {
        row,
        client: rng.usize(..CLIENTS),
        timeout_ms,
        on,
        narrow: narrow(rng),
        handler: (rng.u8(..3) == 0).then(|| rng.u32(..1000)),
        pod: rng.bool().then(|| rng.u32(..1000)),
        which: rng.u32(..1000),
    }
}

fn narrow(rng: &mut Rng) -> Narrow {
    match rng.u32(..20) {
        0..10 => Narrow::Not,
        10..12 => Narrow::Id,
        12 => Narrow::Pod,
        13 => Narrow::PodAndState,
        14..16 => Narrow::State,
        16..18 => Narrow::Uid,
        18 => Narrow::Label,
        _ => Narrow::StateAndLabel,
    }
}

pub fn row(name: &str) -> &'static Row {
    ROWS.iter()
        .find(|row| row.name == name)
        .expect("an RPC of the table")
}

/// Whether the call creates a pod or container, so that criswitch may send the call only once.
pub fn creates(row: &Row) -> bool {
    matches!(row.goes, Goes::Handler(_) | Goes::OwnerWithImage(_))
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op {
            row,
            client,
            timeout_ms,
            on,
            narrow,
            handler,
            pod,
            which,
        } = self;
        write!(f, "{} on {on:?} {which}, client {client}", row.name)?;
        if Takes::of(row).is_some() && *narrow != Narrow::Not {
            write!(f, ", by {narrow:?}")?;
        }
        match (&row.goes, handler, pod) {
            (Goes::Image(..), Some(handler), _) => write!(f, ", of handler {handler}")?,
            (Goes::Image(..), None, Some(pod)) => write!(f, ", of pod {pod}")?,
            _ => {}
        }
        timeout_ms.map_or(Ok(()), |timeout| write!(f, ", at most {timeout} ms"))
    }
}
