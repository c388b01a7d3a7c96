//! Counts the user-mode instructions of a call with callgrind. The count is the difference of a long and a short run,
//! so that it excludes the start and end of the process.

use std::fs;

use crate::Run;
use crate::report::Measured;
use crate::subjects::{Subject, program};

/// The shorter run makes a round's number of calls, divided by this number.
const SHORTER: usize = 50;
/// glibc then copies memory with vector instructions. callgrind counts `rep movsb` as one instruction for each byte.
const COPY: &str = "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1000000000";
/// The longer run makes this many times the calls of the shorter run.
const LONGER: usize = 3;

impl Run {
    /// Counts the instructions of a call and stores them in `measured`. callgrind cannot run the Go proxy, and a direct
    /// call has no process.
    pub fn count_instructions(&self, measured: &mut Measured) {
        if matches!(measured.subject, Subject::Direct | Subject::Go) {
            return;
        }
        let few = (measured.work.calls() / self.divide / SHORTER).max(2);
        let [less, more] = [few, LONGER * few].map(|calls| self.count(measured, calls));
        let more = more.saturating_sub(less) as f64;
        measured.instructions = Some(more / ((LONGER - 1) * few) as f64);
    }

    /// Counts the instructions of a run with this many calls.
    fn count(&self, measured: &mut Measured, calls: usize) -> u64 {
        let (work, subject) = (measured.work, measured.subject);
        eprintln!("{} {} ({calls}, counted)", work.name(), subject.name());
        let log = self.directory.join("callgrind.log");
        let callgrind = [
            "env".to_owned(),
            COPY.to_owned(),
            self.programs.join("valgrind").display().to_string(),
            "--tool=callgrind".to_owned(),
            "--callgrind-out-file=/dev/null".to_owned(),
            format!("--log-file={}", log.display()),
        ];
        if let Some(process) = self.start(subject, work, &callgrind) {
            measured.note(self.round(subject, work, calls).fault);
            process.stop();
        } else {
            let client = [callgrind.to_vec(), self.client(subject, work, calls)].concat();
            program(&client).output().unwrap();
        }
        let log = fs::read_to_string(log).unwrap();
        let counted = log.lines().find_map(|line| line.split_once("Collected : "));
        counted
            .expect("callgrind's count")
            .1
            .trim()
            .parse()
            .unwrap()
    }
}
