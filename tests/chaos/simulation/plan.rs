//! A schedule: what happens, in which order. It follows from its seed, and stays valid when steps are taken out.

use std::fmt;

use criswitch::rpc::{Goes, ROWS, Row};
use fastrand::Rng;

use super::disk::Spoil;
use super::files::{Edit, Mistake, RUNTIMES};
use super::filter::{Narrow, Takes};
use super::lacking::{self, Lacking};
use super::offers::{self, Offer};

/// How many topologies there are.
pub const TOPOLOGIES: usize = 5;
/// The most clients that there are.
pub const CLIENTS: usize = 3;
/// Images that pods run and clients ask for.
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
    /// The client of a call under way goes away.
    Cancel(u32),
    /// Something happens to one of the switch's backends, or to a runtime that is none.
    Fault(usize, Fault),
    /// The files are edited, and the switch takes them up, unless there is a mistake.
    Reload(Vec<Edit>, Option<Mistake>),
    /// The switch is killed, and another one starts with the files of now.
    RestartSwitch(Meanwhile),
    /// The switch ends as it does on SIGTERM, and the next one takes over its socket.
    HandOver(Meanwhile),
    /// The file of a backend cannot be written, as on a full disk; it can be written again.
    FullDisk(usize, bool),
    /// The paused clock moves on.
    Wait(u64),
}

/// What happens between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    Nothing,
    /// The file of one of the backends is spoilt.
    Spoilt(usize, Spoil),
    /// The register is.
    RegisterSpoilt(Spoil),
    /// The machine is rebooted. No pod is left, and these runtimes are not started.
    Reboot([bool; RUNTIMES]),
    /// The state is found by another machine.
    OtherMachine,
    /// The next switch is killed within its start, and another one starts. The killed one has written the files of these
    /// backends, one bit each, and not the register, which may be an old copy then.
    KilledStart(u8),
}

/// A call, before ids are known.
#[derive(Clone)]
pub struct Op {
    pub row: &'static Row,
    pub client: usize,
    /// `None` waits as long as it takes.
    pub timeout_ms: Option<u64>,
    pub on: On,
    /// Of lists.
    pub narrow: Narrow,
    /// Which handler an image call names, if any.
    pub handler: Option<u32>,
    /// Otherwise, for which pod an image call is, if for any.
    pub pod: Option<u32>,
    /// Which of what [`On`] says; which handler, which image.
    pub which: u32,
}

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Something that exists; a list asks for everything.
    Existing,
    /// By the first half of its id.
    Short,
    /// Something that is gone.
    Gone,
    /// What never was.
    Nothing,
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// The process ends.
    Die,
    /// It runs again, with what it had.
    Start,
    /// It runs again and has lost everything.
    StartEmpty,
    /// It runs again, with what it had and with other handlers.
    Offer(Offer),
    /// It runs again, with what it had, as a version that lacks these RPCs.
    Lack(Lacking),
    /// It accepts calls and answers none; it stops doing so.
    Hang(bool),
    /// No byte moves; they move again.
    Freeze(bool),
    /// Lists take so long, in milliseconds, and nothing else does.
    SlowLists(Option<u32>),
    /// It writes at most so many bytes at once; 0 is any number.
    Sip(u8),
    /// Its next call goes wrong.
    Spoil(Damage),
    /// A pod is made without the switch.
    Create,
    /// A pod vanishes without the switch.
    Lose(u32),
    /// It lists and counts what others own, in other states; it stops doing so.
    Claim(bool),
    /// It makes a pod of the far future with the uid and names of another runtime's pod.
    Pose(u32),
    /// It makes nothing and answers with the id of what another backend has, and its pods are of the far future; it stops
    /// doing so.
    Imitate(bool),
    /// Its streams of events end, well or not, and nothing else does.
    EndEvents(bool),
}

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The backend dies instead.
    DieBefore,
    /// It does what it was asked and dies before it says so.
    DieAfter,
    /// It dies after half of its reply.
    DieWithin,
    /// The stream is reset instead.
    ResetBefore,
    /// The stream is reset after it was done.
    ResetAfter,
    /// The stream is reset after half of the reply.
    ResetWithin,
    /// It is done, and the reply comes so many milliseconds later.
    Late(u32),
    /// It is refused.
    Refuse,
    /// It is done, and the reply says that it failed: what it made is left behind.
    FailAfter,
    /// The reply lacks its last byte and says that all is well.
    Cut,
    /// The reply has no status.
    NoStatus,
    /// The reply comes in frames of a few bytes. This harms nothing.
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
        // Some runtimes are old from the start.
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
    match rng.u32(..100) {
        0..3 => poll(rng, steps),
        3..57 => {
            steps.push(Step::Call(op(rng)));
            // Most calls are over before the next one begins.
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

/// Stats of everything are asked for before and after something happens to a backend.
fn poll(rng: &mut Rng, steps: &mut Vec<Step>) {
    let rows: Vec<_> = ROWS.iter().filter(|row| row.is_stats()).collect();
    let row = rows[rng.usize(..rows.len())];
    let poll = Op {
        timeout_ms: None,
        narrow: Narrow::Not,
        ..call(rng, row)
    };
    let fault = match rng.u32(..4) {
        0 => Fault::Die,
        1 => Fault::Hang(true),
        2 => Fault::SlowLists(Some(rng.u32(1..6000))),
        _ => Fault::Spoil(damage(rng)),
    };
    let fault = [Step::Fault(rng.usize(..60), fault)];
    let poll = [Step::Call(poll), Step::Wait(1)];
    steps.extend(poll.iter().chain(&fault).chain(&poll).cloned());
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
    match rng.u32(..46) {
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

fn damage(rng: &mut Rng) -> Damage {
    match rng.u32(..12) {
        0 => Damage::DieBefore,
        1 => Damage::DieAfter,
        2 => Damage::DieWithin,
        3 => Damage::ResetBefore,
        4 => Damage::ResetAfter,
        5 => Damage::ResetWithin,
        6 => Damage::Late(rng.u32(1..5000)),
        7 => Damage::Refuse,
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

/// The row of this name.
pub fn row(name: &str) -> &'static Row {
    ROWS.iter()
        .find(|row| row.name == name)
        .expect("an RPC of the table")
}

/// Whether a call makes something, so that it may be done once only.
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
