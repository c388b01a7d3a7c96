//! Reports the results: a table, the goals, and a JSON file.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::round::Round;
use crate::subjects::{Memory, Subject};
use crate::works::Work;

/// The largest factor by which resident memory may grow: the allocator alone causes that much variation.
const NO_GROWTH: f64 = 1.05;

/// The results of all rounds of one subject with one work.
#[derive(Serialize)]
pub struct Measured {
    #[serde(serialize_with = "by_name")]
    pub work: Work,
    pub subject: Subject,
    rounds: Vec<Round>,
    /// The processor time of the subject in all rounds; `None` if it has no process.
    ran_ns: Option<u64>,
    /// The memory of the subject after each round; empty if it has no process.
    memory: Vec<Memory>,
    /// The number of user-mode instructions of a call; `None` if they were not counted.
    pub instructions: Option<f64>,
    /// The reason why the first wrong reply was wrong.
    pub fault: Option<String>,
}

fn by_name<S: serde::Serializer>(work: &Work, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&work.name())
}

impl Measured {
    pub fn new(work: Work, subject: Subject) -> Measured {
        Measured {
            work,
            subject,
            rounds: Vec::new(),
            ran_ns: None,
            memory: Vec::new(),
            instructions: None,
            fault: None,
        }
    }

    /// Adds a round. The process of the subject ran for `ran_ns` in this round.
    pub fn add(&mut self, round: Round, ran_ns: Option<u64>, memory: Option<Memory>) {
        self.note(round.fault.clone());
        self.rounds.push(round);
        self.memory.extend(memory);
        self.ran_ns = ran_ns.map(|ran_ns| ran_ns + self.ran_ns.unwrap_or_default());
    }

    pub fn note(&mut self, fault: Option<String>) {
        if let Some(fault) = fault {
            println!("{} {}: {fault}", self.work.name(), self.subject.name());
            self.fault.get_or_insert(fault);
        }
    }

    /// Returns the median of a figure over all rounds.
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    fn p50_us(&self) -> f64 {
        self.median(|round| round.p50_ns as f64 / 1e3)
    }

    fn calls_a_second(&self) -> f64 {
        self.median(|round| round.calls as f64 / round.seconds)
    }

    fn ran_us_a_call(&self) -> Option<f64> {
        let calls: usize = self.rounds.iter().map(|round| round.calls).sum();
        Some(self.ran_ns? as f64 / 1e3 / calls as f64)
    }

    /// Returns the subject's processor time, in percent of one processor.
    fn ran_percent(&self) -> Option<f64> {
        let seconds: f64 = self.rounds.iter().map(|round| round.seconds).sum();
        Some(self.ran_ns? as f64 / 1e7 / seconds)
    }

    fn resident_mb(&self) -> Option<f64> {
        Some(megabytes(self.memory.last()?.resident_kib))
    }

    /// Returns the resident memory after the last round, divided by the resident memory after the middle round.
    fn growth(&self) -> Option<f64> {
        let middle = self.memory.get(self.memory.len().checked_sub(1)? / 2)?;
        Some(self.resident_mb()? / megabytes(middle.resident_kib))
    }
}

fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

/// Computes a figure of a subject with one work.
type Figure = fn(&Report, Work, Subject) -> Option<f64>;
/// A goal: its name, the measured figure, and the largest figure that reaches the goal.
type Goal = (&'static str, Option<f64>, f64);

pub struct Report {
    pub measured: Vec<Measured>,
    /// The size of criswitch's binary without symbols.
    pub stripped_bytes: u64,
    /// The times of a pod's life on a real containerd, as `load lives` prints them.
    pub lives: Option<Json>,
}

impl Report {
    fn find(&self, work: Work, subject: Subject) -> Option<&Measured> {
        let mut all = self.measured.iter();
        all.find(|measured| measured.work == work && measured.subject == subject)
    }

    fn criswitch(&self, work: Work) -> Option<&Measured> {
        self.find(work, Subject::Criswitch)
    }

    /// Returns the time that a subject adds to a direct call, in µs.
    fn added(&self, work: Work, subject: Subject) -> Option<f64> {
        let direct = self.find(work, Subject::Direct)?.p50_us();
        Some(self.find(work, subject)?.p50_us() - direct)
    }

    /// Returns criswitch's figure, divided by the same figure of another subject.
    fn ratio(&self, of: Figure, work: Work, reference: Subject) -> Option<f64> {
        Some(of(self, work, Subject::Criswitch)? / of(self, work, reference)?)
    }

    /// Returns criswitch's figure with one work, divided by its figure with another work.
    fn works(&self, of: Figure, work: Work, reference: Work) -> Option<f64> {
        Some(of(self, work, Subject::Criswitch)? / of(self, reference, Subject::Criswitch)?)
    }

    #[rustfmt::skip]
    fn goals(&self) -> Vec<Goal> {
        use Subject::{Go, Haproxy, Nginx, Prost};
        use Work::{
            List1000, List1000Changed, List50000, Merge2, Poll110, Poll500, Poll1000, Start, Unary, UnaryOf50000,
            UnaryX16,
        };
        let (added, p50, throughput, ran, instructions): (Figure, Figure, Figure, Figure, Figure) = (
            Report::added,
            |report, work, subject| Some(report.find(work, subject)?.p50_us()),
            |report, work, subject| Some(report.find(work, subject)?.calls_a_second()),
            |report, work, subject| report.find(work, subject)?.ran_us_a_call(),
            |report, work, subject| report.find(work, subject)?.instructions,
        );
        let slower = self.ratio(throughput, UnaryX16, Nginx).map(|ratio| 1.0 / ratio);
        let growth = self.works(ran, List50000, List1000).map(|ratio| ratio / 50.0);
        let percent = |work| self.criswitch(work)?.ran_percent();
        let resident = |work| self.criswitch(work)?.resident_mb();
        let grown = self.criswitch(Poll1000).and_then(Measured::growth);
        let start_ms = self.criswitch(Start).map(|start| start.p50_us() / 1e3);
        let life = self.lives.as_ref().and_then(|lives| lives["life"]["ratio"].as_f64());
        vec![
            ("unary: added p50 / HAProxy's", self.ratio(added, Unary, Haproxy), 1.0),
            ("unary: added p50 / Go proxy's", self.ratio(added, Unary, Go), 0.2),
            ("unary-x16: nginx's calls a second / criswitch's", slower, 1.0 / 1.4),
            ("unary: instructions / nginx's", self.ratio(instructions, Unary, Nginx), 1.5),
            ("list1000: instructions / nginx's", self.ratio(instructions, List1000, Nginx), 3.0),
            ("list1000-changed: instructions / nginx's", self.ratio(instructions, List1000Changed, Nginx), 6.0),
            ("list1000: added p50 / nginx's", self.ratio(added, List1000, Nginx), 1.0),
            ("merge2: p50 / list1000's", self.works(p50, Merge2, List1000), 1.3),
            ("merge2: instructions / prost's", self.ratio(instructions, Merge2, Prost), 1.0 / 20.0),
            ("list50000: processor time a container / list1000's", growth, 1.1),
            ("unary-of-50000: p50 / unary's", self.works(p50, UnaryOf50000, Unary), 1.1),
            ("poll110: % of a processor", percent(Poll110), 0.1),
            ("poll500: % of a processor", percent(Poll500), 0.3),
            ("start: resident MB, idle with four backends", resident(Start), 5.0),
            ("poll1000: resident MB at the end", resident(Poll1000), 14.0),
            ("poll1000: resident MB at the end / in the middle", grown, NO_GROWTH),
            ("start: ms until the first reply", start_ms, 10.0),
            ("size of the stripped daemon, MB", Some(self.stripped_bytes as f64 / 1e6), 6.0),
            ("a pod's life on a real containerd / direct", life, 1.01),
        ]
    }

    pub fn print(&self) {
        println!(
            "{:<16} {:<10} {:>10} {:>9} {:>8} {:>10} {:>9} {:>9} {:>7} {:>7} {:>8}",
            "work",
            "subject",
            "p50 µs",
            "added µs",
            "/ nginx",
            "p99 µs",
            "calls/s",
            "CPU µs",
            "RSS MB",
            "anon MB",
            "k instr"
        );
        for measured in &self.measured {
            self.print_row(measured);
        }
        println!("\n{:<51} {:>8} {:>8} holds", "goal", "figure", "at most");
        for (name, figure, most) in self.goals() {
            let holds = match figure {
                Some(figure) if figure <= most => "yes",
                Some(_) => "no",
                None => "not measured",
            };
            println!("{name:<51} {:>8} {most:>8.2} {holds}", text(figure));
        }
    }

    fn print_row(&self, measured: &Measured) {
        let (work, subject) = (measured.work, measured.subject);
        let added = self.added(work, subject);
        let nginx = self
            .added(work, Subject::Nginx)
            .and_then(|nginx| Some(added? / nginx));
        let memory = measured.memory.last();
        println!(
            "{:<16} {:<10} {:>10.1} {:>9} {:>8} {:>10.1} {:>9.0} {:>9} {:>7} {:>7} {:>8}",
            work.name(),
            subject.name(),
            measured.p50_us(),
            text(added),
            text(nginx),
            measured.median(|round| round.p99_ns as f64 / 1e3),
            measured.calls_a_second(),
            text(measured.ran_us_a_call()),
            text(memory.map(|memory| megabytes(memory.resident_kib))),
            text(memory.map(|memory| megabytes(memory.anonymous_kib))),
            text(measured.instructions.map(|count| count / 1e3)),
        );
    }

    pub fn write(&self, path: &Path) {
        let goals: Vec<_> = self
            .goals()
            .into_iter()
            .map(|(name, figure, most)| json!({ "name": name, "figure": figure, "at_most": most }))
            .collect();
        let report = json!({
            "measured": self.measured,
            "stripped_bytes": self.stripped_bytes,
            "lives": self.lives,
            "goals": goals,
        });
        fs::write(path, format!("{report:#}\n")).unwrap();
    }
}

fn text(figure: Option<f64>) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.2}"))
}
