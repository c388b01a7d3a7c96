//! One run of the benchmark: four backends, criswitch, the clients, and the fault of the fourth backend.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::time::{interval, sleep, timeout};

use crate::backend::{BACKENDS, Backend, FOURTH};
use crate::clients::{Clients, Seen};
use crate::machine::{Machine, Switch, Times};
use crate::support::PATIENCE;

const WARM_UP: Duration = Duration::from_secs(2);

/// The fault of the fourth backend, which begins when the run has warmed up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    Hangs,
    ListsHang,
    ListsMany,
}

impl Trouble {
    pub const ALL: [Trouble; 4] = [
        Trouble::None,
        Trouble::Hangs,
        Trouble::ListsHang,
        Trouble::ListsMany,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Trouble::None => "none",
            Trouble::Hangs => "hangs",
            Trouble::ListsHang => "lists hang",
            Trouble::ListsMany => "lists 100,000 pods",
        }
    }

    fn befall(self, backend: &Backend) {
        match self {
            Trouble::None => {}
            Trouble::Hangs => backend.hang(),
            Trouble::ListsHang => backend.hang_lists(),
            Trouble::ListsMany => backend.list_many(),
        }
    }
}

/// The results of one run.
pub struct Run {
    pub trouble: Trouble,
    pub seen: Seen,
    /// criswitch's resident memory, measured once a second.
    pub resident_kib: Vec<u64>,
    pub took: Times,
    /// The machine's load average at the end of the run.
    pub load: String,
}

impl Run {
    pub async fn measure(machine: &Machine, trouble: Trouble, length: Duration) -> Run {
        let directory = tempfile::tempdir().unwrap();
        let backends: Vec<Backend> = (0..BACKENDS)
            .map(|number| Backend::serve_on(&directory.path().join(number.to_string()), number))
            .collect();
        std::fs::write(directory.path().join("criswitch.toml"), table(&directory)).unwrap();
        let switch = machine.start_switch(directory.path());
        let socket = directory.path().join("criswitch.sock");
        await_socket(&socket).await;
        let clients = Clients::connect(&socket).await;
        clients.call_for(WARM_UP).await;
        trouble.befall(&backends[FOURTH]);
        let before = switch.times();
        let (seen, resident_kib) = tokio::join!(clients.call_for(length), watch(&switch, length));
        Run {
            trouble,
            seen,
            resident_kib,
            took: switch.times().since(before),
            load: machine.load(),
        }
    }

    /// Returns the median of the resident memory between two percentages of the run. The median omits the short-lived
    /// memory of single lists.
    pub fn resident_kib(&self, from: usize, to: usize) -> u64 {
        let at = |percent: usize| self.resident_kib.len() * percent / 100;
        let mut part = self.resident_kib[at(from)..at(to)].to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or_default()
    }
}

fn table(directory: &tempfile::TempDir) -> String {
    let directory = directory.path().display();
    let rows: String = (0..BACKENDS)
        .map(|number| format!("h{number} = \"{directory}/{number}\"\n"))
        .collect();
    format!("listen = \"{directory}/criswitch.sock\"\ndefault_handler = \"h0\"\n[handlers]\n{rows}")
}

async fn await_socket(socket: &Path) {
    let there = async {
        while UnixStream::connect(socket).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, there).await.expect("criswitch serves");
}

async fn watch(switch: &Switch, length: Duration) -> Vec<u64> {
    let end = Instant::now() + length;
    let mut every_second = interval(Duration::from_secs(1));
    let mut resident = Vec::new();
    while every_second.tick().await.into_std() < end {
        resident.push(switch.resident_kib());
    }
    resident.push(switch.resident_kib());
    resident
}
