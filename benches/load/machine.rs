//! Puts the benchmark and criswitch's process on different processors, and reads the counters of that process.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::unit;

/// The processors that the benchmark may use.
pub struct Machine {
    /// Whether criswitch and the benchmark each have a processor of their own.
    pub pinned: bool,
}

impl Machine {
    /// Moves the benchmark to the first processor, so that criswitch can use the second one alone.
    pub fn prepare() -> Machine {
        let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        let pid = std::process::id().to_string();
        let moved = || {
            let taskset = Command::new("taskset")
                .args(["--pid", "--cpu-list", "0", &pid])
                .stdout(Stdio::null())
                .status();
            taskset.is_ok_and(|status| status.success())
        };
        Machine {
            pinned: several && moved(),
        }
    }

    /// Returns the load average of the last minute.
    pub fn load(&self) -> String {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        load.split(' ').next().unwrap_or("?").to_owned()
    }

    /// Starts criswitch with the environment of its unit. The log goes to a file beside the configuration.
    pub fn start_switch(&self, directory: &Path) -> Switch {
        let binary = env!("CARGO_BIN_EXE_criswitchd");
        let mut command = Command::new(if self.pinned { "taskset" } else { binary });
        if self.pinned {
            command.args(["--cpu-list", "1", binary]);
        }
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let child = command
            .args(["--config"])
            .arg(directory.join("criswitch.toml"))
            .envs(unit::environment())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Switch(child)
    }
}

/// criswitch's process. Dropping this value kills the process.
pub struct Switch(Child);

/// The times of a process with one thread, as the kernel counts them.
#[derive(Clone, Copy)]
pub struct Times {
    /// How long the process ran.
    pub ran: Duration,
    /// How long the process was ready to run, but waited for a processor.
    pub waited: Duration,
}

impl Times {
    /// Returns the difference to an earlier value.
    pub fn since(self, before: Times) -> Times {
        Times {
            ran: self.ran - before.ran,
            waited: self.waited - before.waited,
        }
    }
}

impl Switch {
    pub fn resident_kib(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.expect("criswitch has ended").parse().unwrap()
    }

    pub fn times(&self) -> Times {
        let numbers = self.proc("schedstat");
        let mut numbers = numbers.split_whitespace().map(|n| n.parse().unwrap());
        let mut next = || Duration::from_nanos(numbers.next().unwrap());
        Times {
            ran: next(),
            waited: next(),
        }
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // The process may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
