//! `criswitch try`: starts a pod of a handler through the daemon, looks at its isolation, and removes it. `--measure`
//! then measures what such pods cost.
//!
//! The pod is removed after each failure and after Ctrl-C. The command removes no other pod.

mod call;
mod cost;
mod images;
mod isolation;
mod measure;
mod pod;
mod pods;
mod row;
mod steps;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, value_parser};
use clap_complete::ArgValueCandidates;
use criswitch_client::arguments::Daemon;
use criswitch_client::columns::columns;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Output};
use criswitch_client::probe;
use criswitch_client::program::block_on;
use criswitch_client::running::{self, Running, unknown_name};
use criswitch_client::terminal::{self, print};
use criswitch_config::address::Address;
use criswitch_config::{Config, RuntimeKind, duration_text};
use criswitch_cri::codec::admin::{Backend, Handler, State};
use criswitch_platform::process::interrupt;
use criswitch_platform::usage::Machine;
use criswitch_platform::{Kernel, KernelReport, kernel};
use serde_json::{Value as Json, json};

use super::{complete, reload};
use call::TryFailure;
use cost::Cost;
use images::Candidate;
use isolation::{Isolation, Observed};
use measure::Measurement;
use pod::{PodSettings, Started, TrialPod};
use pods::{Interrupt, Stopped, TryPods};
use row::WrittenRow;
use steps::{CREATE_POD, Steps, milliseconds, rounded_time};

/// How long a try repeats its work in new pods if something else stops its pods: the `limit` of [`TryPods::with_pod`].
const REPEATS_LIMIT: Duration = Duration::from_secs(20);
/// The smallest value of `--idle`.
const LEAST_IDLE: Duration = Duration::from_millis(1);
/// The largest value of `--idle`. The container of a pod sleeps for only an hour.
const MOST_IDLE: Duration = Duration::from_secs(600);
#[rustfmt::skip]
const HEADER: [&str; 6] = ["HANDLER", "BACKEND", "RUNTIME", "RESULT", "ISOLATION", "TIME"];

/// The text after an overhead was written.
const NEXT: &str = "\
The configuration has the new overhead. The running criswitch needs no reload for
it, because routing does not use it. `criswitch manifests` prints the RuntimeClass
with it.
";

const HELP: &str = include_str!("help/try.txt").trim_ascii_end();

/// The arguments of `criswitch try`.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct TryArguments {
    /// The name of the handler, as shown by `criswitch status`.
    #[arg(required_unless_present = "all", add = ArgValueCandidates::new(complete::handlers))]
    handler: Option<String>,
    /// Try each handler, one after the other.
    #[arg(long, conflicts_with = "handler")]
    all: bool,
    /// The image of the container; criswitch pulls it if the backend lacks it.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Use the host network (no CNI plugin).
    #[arg(long)]
    host_network: bool,
    /// Also measure the memory, CPU time and start and stop times of pods, and print the overhead for the
    /// configuration.
    #[arg(long)]
    measure: bool,
    /// How often to measure each kind of pod.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "measure", value_parser = value_parser!(u8).range(1..=100))]
    runs: u8,
    /// How long an idle pod is measured at a time. A longer time measures the CPU time of an idle pod more precisely.
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "measure", value_parser = idle)]
    idle: Duration,
    /// Write the overhead to the handler's row in the configuration file of the running daemon.
    #[arg(long, requires = "measure")]
    write: bool,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: Output,
    /// Look for the cgroups and processes of the pods below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The outcome of one handler.
struct Tried<'a> {
    handler: &'a Handler,
    /// `kind` in the row of the handler; `None` if the configuration of the daemon cannot be read.
    kind: Option<RuntimeKind>,
    backend: Backend,
    image: Option<String>,
    steps: Steps,
    attempts: usize,
    /// `None` if the container did not report its kernel.
    observed: Option<Observed>,
    /// The step that failed, and why.
    failure: Option<String>,
    /// Whether the handler was not tried, because its backend has no image with a shell.
    untested: bool,
    warning: Option<String>,
    /// `None` if the pods were not measured.
    cost: Option<Cost>,
    /// The row with the overhead, or why it was not written; `None` without `--write`.
    written: Option<Result<WrittenRow, String>>,
    /// The pods that may be left, and how to remove them.
    leftovers: Vec<String>,
}

/// The facts that all tries of a command share.
struct Session<'a> {
    daemon: &'a Running,
    /// Where to measure pods; `None` without `--measure`.
    machine: Option<Machine>,
    /// The main file of the configuration that gets the overhead; `None` without `--write`.
    configuration: Option<&'a Path>,
    interrupt: Interrupt,
}

impl TryArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        block_on(self.try_all())
    }

    async fn try_all(&self) -> anyhow::Result<Verdict> {
        let daemon = self.daemon.connect().await?;
        let state = daemon.state().await?;
        let handlers = match self.handlers(&state) {
            Ok(handlers) => handlers,
            Err(unknown) => return self.reject(&unknown),
        };
        let machine = match self.measure.then(|| Machine::at(&self.root)).transpose() {
            Ok(machine) => machine,
            Err(error) => return self.reject(&format!("pods cannot be measured: {error}")),
        };
        let main = self.daemon.file.path.as_path();
        let config = match reload::same_file(main, &state) {
            Err(error) if self.write => return self.reject(&error.to_string()),
            Err(_) => None,
            Ok(()) => Config::load(main).ok(),
        };
        let mut session = Session {
            daemon: &daemon,
            machine,
            configuration: self.write.then_some(main),
            interrupt: Box::pin(interrupt()?),
        };
        let mut tried = Vec::new();
        for handler in handlers {
            let kind = config
                .as_ref()
                .and_then(|it| it.table.handler(&handler.name)?.kind);
            let mut one = Tried::new(&state, handler, kind, self.output.encoding().is_none());
            let is_interrupted = self.try_one(&mut session, &mut one).await;
            one.conclude();
            tried.push(one);
            if is_interrupted {
                break;
            }
        }
        self.report(&tried)
    }

    /// The handlers to try.
    ///
    /// # Errors
    /// No handler has the name that the user gave.
    fn handlers<'a>(&self, state: &'a State) -> Result<Vec<&'a Handler>, String> {
        let Some(wanted) = &self.handler else {
            return Ok(state.handlers.iter().collect());
        };
        state
            .handlers
            .iter()
            .find(|row| row.name == *wanted)
            .map(|row| vec![row])
            .ok_or_else(|| {
                let names = state.handlers.iter().map(|it| &*it.name);
                unknown_name("handler", wanted, names)
            })
    }

    fn reject(&self, problem: &str) -> anyhow::Result<Verdict> {
        if let Some(encoding) = self.output.encoding() {
            print(
                encoding
                    .document(json!({ "tries": [], "problems": [output::problem(problem)] }))?,
            )?;
        }
        terminal::print_stderr(&format!("criswitch: {problem}\n"));
        Ok(Verdict::NotFine)
    }

    /// Tries a handler. Returns whether the user interrupted it.
    async fn try_one(&self, session: &mut Session<'_>, tried: &mut Tried<'_>) -> bool {
        tried.steps.print(&tried.title());
        let row = session
            .configuration
            .map(|main| row::find(main, &tried.handler.name));
        if let Some(Err(problem)) = row {
            tried.failure = Some(format!("{problem:#}"));
            return false;
        }
        let stopped = self.work(session, tried).await.err();
        let is_interrupted = matches!(stopped, Some(Stopped::Interrupted));
        tried.failure = stopped.map(|stopped| match stopped {
            Stopped::Failed(why) => why,
            Stopped::Interrupted => "interrupted".to_owned(),
        });
        if let (Some(main), Some(cost)) = (session.configuration, &tried.cost) {
            tried.written = Some(
                row::write(main, &tried.handler.name, &cost.overhead())
                    .map_err(|error| format!("{error:#}")),
            );
        }
        is_interrupted
    }

    /// Starts a pod, and then measures pods if the user wants that.
    async fn work(&self, session: &mut Session<'_>, tried: &mut Tried<'_>) -> Result<(), Stopped> {
        let cgroup_driver = cgroup_driver(&tried.backend).await;
        let mut pods = TryPods {
            daemon: session.daemon,
            settings: PodSettings {
                handler: &tried.handler.name,
                backend: &tried.handler.backend,
                cgroup_driver: cgroup_driver.as_deref(),
                host_network: self.host_network,
            },
            interrupt: &mut session.interrupt,
            untested: &mut tried.untested,
            leftovers: &mut tried.leftovers,
        };
        let work = PodSteps {
            daemon: session.daemon,
            handler: &tried.handler.name,
            image: self.image.as_deref(),
        };
        let run = async |pod: &mut TrialPod<'_>, steps: &mut Steps| work.run(pod, steps).await;
        let (image, report) = pods
            .with_pod(&mut tried.steps, (&mut tried.attempts, REPEATS_LIMIT), run)
            .await?;
        let observed = isolation::observe(report, &Kernel::own());
        let is_virtual_machine = observed.isolation == Isolation::VirtualMachine;
        tried.observed = Some(observed);
        tried.image = Some(image.name);
        if let Some(machine) = &session.machine {
            let measurement = Measurement {
                machine,
                image: image.spec,
                runs: self.runs.into(),
                window: self.idle,
                is_virtual_machine,
            };
            tried.cost = Some(measurement.run(&mut pods, &tried.steps).await?);
        }
        Ok(())
    }

    fn report(&self, tried: &[Tried<'_>]) -> anyhow::Result<Verdict> {
        tried.iter().try_for_each(|tried| tried.steps.printed())?;
        if let Some(encoding) = self.output.encoding() {
            let problems: Vec<Json> = tried.iter().flat_map(Tried::problems).collect();
            let tries: Vec<Json> = tried.iter().map(Tried::json).collect();
            print(encoding.document(json!({ "tries": tries, "problems": problems }))?)?;
        } else {
            self.print_tables(tried)?;
        }
        Ok(Verdict::of(tried.iter().all(Tried::is_fine)))
    }

    fn print_tables(&self, tried: &[Tried<'_>]) -> anyhow::Result<()> {
        if self.all {
            let table = columns(&HEADER, tried.iter().map(Tried::row))?;
            print(format!("\n{table}"))?;
        }
        let costs: Vec<_> = tried
            .iter()
            .filter_map(|tried| Some(tried.cost.as_ref()?.rows(&tried.handler.name)))
            .flatten()
            .collect();
        if !costs.is_empty() {
            print(format!("\n{}", columns(&cost::HEADER, costs)?))?;
        }
        if tried.iter().any(|it| matches!(it.written, Some(Ok(_)))) {
            print(NEXT)?;
        }
        Ok(())
    }
}

/// The steps of one pod.
struct PodSteps<'a> {
    daemon: &'a Running,
    handler: &'a str,
    /// The image that the user names.
    image: Option<&'a str>,
}

impl PodSteps<'_> {
    /// Makes the pod, looks at its kernel, and removes it. Returns the image and the kernel. After a failure the pod
    /// may exist.
    async fn run(
        &self,
        pod: &mut TrialPod<'_>,
        steps: &mut Steps,
    ) -> Result<(Candidate, KernelReport), TryFailure> {
        // A kubelet may stop the pod soon, so the steps that take time and need no pod come first.
        let candidates = self.candidates(steps).await?;
        steps.run(CREATE_POD, pod.create()).await?;
        let image = start_container(pod, steps, candidates).await?;
        let output = steps
            .run("execute command", pod.execute(kernel::look()))
            .await?;
        steps.run("read log", pod.read_log()).await?;
        pod.end_container(steps).await?;
        pod.end(steps).await?;
        Ok((image, KernelReport::parse(&output)))
    }

    async fn candidates(&self, steps: &mut Steps) -> Result<Vec<Candidate>, TryFailure> {
        let (daemon, handler) = (self.daemon, self.handler);
        let Some(name) = self.image else {
            return steps
                .run("find image", images::present(daemon, handler))
                .await;
        };
        if !steps
            .run("find image", images::has(daemon, handler, name))
            .await?
        {
            steps
                .run("pull image", images::pull(daemon, handler, name))
                .await?;
        }
        Ok(vec![images::named(name)])
    }
}

/// The cgroup driver of a backend. containerd before 2.0 reports the driver only as a part of its configuration, which
/// the daemon does not read.
async fn cgroup_driver(backend: &Backend) -> Option<String> {
    if let Some(driver) = &backend.cgroup_driver {
        return Some(driver.clone());
    }
    probe::cgroup_driver_at(&Address::parse(&backend.socket).ok()?)
        .await
        .map(str::to_owned)
}

fn idle(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        time if time < LEAST_IDLE => Err(format!("less than {}", duration_text(LEAST_IDLE))),
        time if time > MOST_IDLE => Err(format!("more than {}", duration_text(MOST_IDLE))),
        time => Ok(time),
    }
}

/// Starts a container of the first image that has a shell, and returns the image.
async fn start_container(
    pod: &mut TrialPod<'_>,
    steps: &mut Steps,
    candidates: Vec<Candidate>,
) -> Result<Candidate, TryFailure> {
    let mut without_shell = Vec::new();
    for image in candidates {
        match pod.run_container(steps, &image.spec).await? {
            Started::Runs => {
                steps.say("image", &image.name);
                return Ok(image);
            }
            Started::NoShell => {
                steps.say("image", &format!("{} has no shell", image.name));
                without_shell.push(image.name);
            }
        }
    }
    Err(TryFailure::needs_image(&format!(
        "these images have no shell: {}; name an image with a shell",
        without_shell.join(", ")
    )))
}

impl<'a> Tried<'a> {
    fn new(
        state: &State,
        handler: &'a Handler,
        kind: Option<RuntimeKind>,
        prints: bool,
    ) -> Tried<'a> {
        Tried {
            handler,
            kind,
            backend: running::backend(state, &handler.backend)
                .cloned()
                .unwrap_or_default(),
            image: None,
            steps: Steps::new(prints),
            attempts: 0,
            observed: None,
            failure: None,
            untested: false,
            warning: None,
            cost: None,
            written: None,
            leftovers: Vec::new(),
        }
    }

    fn runtime(&self) -> String {
        format!("{} {}", self.backend.runtime, self.backend.version)
            .trim()
            .to_owned()
    }

    fn result(&self) -> &'static str {
        match self.failure {
            None => "ok",
            Some(_) => "failed",
        }
    }

    fn title(&self) -> String {
        let (name, backend) = (&self.handler.name, &self.handler.backend);
        format!("{name} on backend {backend} ({})\n", self.runtime())
    }

    /// Compares the isolation with the kind and the name of the handler, and prints the result of the try.
    fn conclude(&mut self) {
        if let Some(observed) = &self.observed {
            let names = [&*self.handler.name, &*self.handler.backend_handler];
            self.warning = isolation::isolation_mismatch(self.kind, names, observed);
            let (seen, evidence) = (observed.isolation.words(), observed.evidence.join(", "));
            self.steps.say("isolation", &format!("{seen}: {evidence}"));
        }
        let result = match &self.failure {
            None => "ok: this handler starts pods".to_owned(),
            Some(failure) => self.short_failure(failure),
        };
        self.steps.say("result", &result);
        if let Some(cost) = &self.cost {
            self.steps.say("row", &row::line(&cost.overhead()));
            cost.notes()
                .iter()
                .for_each(|note| self.steps.say("note", note));
        }
        if let Some(Ok(written)) = &self.written {
            self.steps.say("written", &written.text());
        }
        for problem in self.complaints() {
            let name = &self.handler.name;
            terminal::print_stderr(&format!("criswitch: handler {name}: {problem}\n"));
        }
    }

    /// The failure, without the error that the line of the last step already shows.
    fn short_failure(&self, failure: &str) -> String {
        self.steps
            .last()
            .and_then(|step| {
                let hint = failure.strip_prefix(&step.failure()?)?;
                Some(format!("failed at {:?}{hint}", step.name))
            })
            .unwrap_or_else(|| format!("failed: {failure}"))
    }

    /// The problems besides the failure of a step.
    fn complaints(&self) -> impl Iterator<Item = &String> {
        self.warning
            .iter()
            .chain(self.written.iter().filter_map(|it| it.as_ref().err()))
            .chain(&self.leftovers)
    }

    fn is_fine(&self) -> bool {
        self.failure.is_none()
            && self.written.as_ref().is_none_or(Result::is_ok)
            && self.leftovers.is_empty()
    }

    fn problems(&self) -> Vec<Json> {
        let name = &self.handler.name;
        self.failure
            .iter()
            .chain(self.complaints())
            .map(|problem| output::problem(&format!("handler {name}: {problem}")))
            .collect()
    }

    fn row(&self) -> [String; HEADER.len()] {
        let observed = self.observed.as_ref();
        [
            self.handler.name.clone(),
            self.handler.backend.clone(),
            self.runtime(),
            self.result().to_owned(),
            observed.map_or("", |it| it.isolation.words()).to_owned(),
            rounded_time(self.steps.time()),
        ]
    }

    fn json(&self) -> Json {
        json!({
            "handler": self.handler.name,
            "backend": self.handler.backend,
            "backendHandler": self.handler.backend_handler,
            "runtime": self.backend.runtime,
            "version": self.backend.version,
            "image": self.image,
            "result": self.result(),
            "failure": self.failure,
            "untested": self.untested,
            "attempts": self.attempts,
            "steps": self.steps.done,
            "milliseconds": milliseconds(self.steps.time()),
            "isolation": self.observed.as_ref().map(Observed::json),
            "warning": self.warning,
            "cost": self.cost.as_ref().map(Cost::json),
            "written": self.written.as_ref().and_then(|it| Some(it.as_ref().ok()?.json())),
            "leftovers": self.leftovers,
        })
    }
}
