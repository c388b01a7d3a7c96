//! `criswitch try`: starts a pod of a handler through the daemon, looks at its isolation, and removes it.
//!
//! The pod is removed after each failure and after Ctrl-C. The command removes no other pod.

mod call;
mod images;
mod isolation;
mod pod;
mod steps;

use std::pin::Pin;

use clap::Args;
use clap_complete::ArgValueCandidates;
use criswitch::codec::admin::{Backend, Handler, State};
use criswitch::platform::process::shutdown;
use criswitch::platform::{Kernel, KernelReport, kernel};
use serde_json::{Value as Json, json};

use super::columns::columns;
use super::output::{self, Output};
use super::running::Running;
use super::{Daemon, Verdict, complete, print, terminal};
use call::Failure;
use images::Candidate;
use isolation::Observed;
use pod::{PodSettings, Started, TrialPod};
use steps::{CREATE_POD, Steps, milliseconds, short};

/// The number of pods that are created if something else, such as a kubelet, stops the pods of a try.
const ATTEMPTS: usize = 3;
const HEADER: [&str; 6] = [
    "HANDLER",
    "BACKEND",
    "RUNTIME",
    "RESULT",
    "ISOLATION",
    "TIME",
];

pub(super) const HELP: &str = "\
criswitch try creates a pod and a container of the handler through the
running daemon, executes a command, reads the log of the container and
stops and removes both. It removes them after a failure and after
Ctrl-C, too. It does not use the kubelet or the API server.

Rules:
  The container uses an image that the handler's backend has. The image
  must have a shell. --image pulls the image if the backend lacks it.

  The pod has the pod network, as most pods. A network plugin that asks
  the API server for the pod rejects it: then try --host-network.

  A kubelet stops each pod that it does not know, within seconds. If it
  stops the pod before the end of a try, criswitch tries again, at most
  3 times.

  A warning says that the name of the handler promises a different
  isolation: gvisor, runsc, kata, runc, crun and runhcs-*.

Examples:
  criswitch try gvisor      try one handler
  criswitch try --all       try each handler in turn
  criswitch try kata --image docker.io/library/busybox:1.36

Exit codes: 0 each tried handler starts pods, 1 a handler does not, or
there is no such handler, 69 criswitch is not running or not reachable,
78 the file after --config cannot be read.";

/// The arguments of `criswitch try`.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct Try {
    /// The name of the handler in `criswitch status`.
    #[arg(required_unless_present = "all", add = ArgValueCandidates::new(complete::handlers))]
    handler: Option<String>,
    /// Try each handler, one after the other.
    #[arg(long, conflicts_with = "handler")]
    all: bool,
    /// The image of the container; criswitch pulls it if the backend lacks it.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Give the pod the network of this machine, without a network plugin.
    #[arg(long)]
    host_network: bool,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The outcome of one handler.
struct Tried<'a> {
    handler: &'a Handler,
    backend: Backend,
    image: Option<String>,
    steps: Steps,
    attempts: usize,
    /// `None` if the container did not report its kernel.
    observed: Option<Observed>,
    /// The step that failed, and why.
    failure: Option<String>,
    warning: Option<String>,
    /// The pods that may be left, and how to remove them.
    leftovers: Vec<String>,
}

/// The end of one pod.
enum Attempt {
    Ended,
    Interrupted,
    /// Something else stopped the pod, so that another pod may work.
    Disturbed,
}

/// The future that ends at Ctrl-C.
type Interrupt = Pin<Box<dyn Future<Output = ()>>>;

impl Try {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.try_all())
    }

    async fn try_all(&self) -> anyhow::Result<Verdict> {
        let daemon = self.daemon.connect().await?;
        let state = daemon.state().await?;
        let handlers = match self.handlers(&state) {
            Ok(handlers) => handlers,
            Err(unknown) => return self.unknown(&unknown),
        };
        let mut interrupt: Interrupt = Box::pin(shutdown()?);
        let mut tried = Vec::new();
        for handler in handlers {
            let mut one = Tried::new(&state, handler, self.output.encoding().is_none());
            let is_interrupted = self.try_one(&daemon, &mut one, &mut interrupt).await;
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
        let mut rows = state.handlers.iter();
        let row = rows.find(|row| row.name == *wanted);
        row.map(|row| vec![row]).ok_or_else(|| {
            let names = state.handlers.iter().map(|row| row.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            format!("no handler is named {wanted:?}; the handlers are: {names}")
        })
    }

    fn unknown(&self, problem: &str) -> anyhow::Result<Verdict> {
        if let Some(encoding) = self.output.encoding() {
            let problems = [output::problem(problem)];
            print(encoding.document(json!({ "tries": [], "problems": problems }))?)?;
        }
        terminal::complain(&format!("criswitch: {problem}\n"));
        Ok(Verdict::NotFine)
    }

    /// Tries a handler. Returns whether the user interrupted it.
    async fn try_one(
        &self,
        daemon: &Running,
        tried: &mut Tried<'_>,
        interrupt: &mut Interrupt,
    ) -> bool {
        tried.steps.print(&tried.title());
        loop {
            tried.attempts += 1;
            match self.attempt(daemon, tried, interrupt).await {
                Attempt::Disturbed if tried.attempts < ATTEMPTS => tried.steps.say(
                    "again",
                    "because something else, such as a kubelet, stopped the pod",
                ),
                Attempt::Interrupted => return true,
                Attempt::Ended | Attempt::Disturbed => return false,
            }
        }
    }

    /// Makes one pod, and removes it in any case.
    async fn attempt(
        &self,
        daemon: &Running,
        tried: &mut Tried<'_>,
        interrupt: &mut Interrupt,
    ) -> Attempt {
        let settings = PodSettings {
            handler: &tried.handler.name,
            backend: &tried.handler.backend,
            cgroup_driver: tried.backend.cgroup_driver.as_deref(),
            host_network: self.host_network,
        };
        let mut pod = match TrialPod::new(daemon, &settings) {
            Ok(pod) => pod,
            Err(failure) => {
                tried.failure = Some(failure.text);
                return Attempt::Ended;
            }
        };
        let work = Work {
            daemon,
            handler: &tried.handler.name,
            image: self.image.as_deref(),
            steps: &mut tried.steps,
        };
        let worked = tokio::select! {
            // After an interruption no further pod is created.
            biased;
            () = interrupt.as_mut() => None,
            worked = work.run(&mut pod) => Some(worked),
        };
        let attempt = match worked {
            None => {
                tried.steps.interrupt();
                tried.failure = Some("interrupted".to_owned());
                Attempt::Interrupted
            }
            Some(Ok((image, report))) => {
                tried.image = Some(image);
                tried.observed = Some(isolation::observe(report, &Kernel::own()));
                tried.failure = None;
                Attempt::Ended
            }
            Some(Err(failure)) => {
                let was_stopped = pod.was_stopped().await;
                tried.failure = Some(self.words(&tried.steps, &failure, was_stopped));
                match was_stopped {
                    true => Attempt::Disturbed,
                    false => Attempt::Ended,
                }
            }
        };
        tried.leftovers.extend(pod.clean_up().await.err());
        attempt
    }

    /// Why a step failed, and what to try if the runtime's words do not say it.
    fn words(&self, steps: &Steps, failure: &Failure, was_stopped: bool) -> String {
        let step = steps.last().map_or("", |step| step.name);
        let text = &failure.text;
        let lower = text.to_lowercase();
        let is_network = step == CREATE_POD && (lower.contains("network") || lower.contains("cni"));
        let hint = if was_stopped {
            "; something else stopped the pod, such as a kubelet, which stops each pod that it does not know: stop the \
             kubelet during the try"
        } else if is_network && !self.host_network {
            "; if the network plugin needs a pod that the API server knows, try --host-network"
        } else {
            ""
        };
        format!("{step}: {text}{hint}")
    }

    fn report(&self, tried: &[Tried<'_>]) -> anyhow::Result<Verdict> {
        if let Some(encoding) = self.output.encoding() {
            let problems: Vec<Json> = tried.iter().flat_map(Tried::problems).collect();
            let tries: Vec<Json> = tried.iter().map(Tried::json).collect();
            print(encoding.document(json!({ "tries": tries, "problems": problems }))?)?;
        } else if self.all {
            let table = columns(&HEADER, tried.iter().map(Tried::row))?;
            print(format!("\n{table}"))?;
        }
        let is_fine = |tried: &Tried<'_>| tried.failure.is_none() && tried.leftovers.is_empty();
        match tried.iter().all(is_fine) {
            true => Ok(Verdict::Fine),
            false => Ok(Verdict::NotFine),
        }
    }
}

/// The steps of one pod.
struct Work<'a> {
    daemon: &'a Running,
    handler: &'a str,
    /// The image that the user names.
    image: Option<&'a str>,
    steps: &'a mut Steps,
}

impl Work<'_> {
    /// Makes the pod, looks at its kernel, and removes it. Returns the name of the image and the kernel. After a
    /// failure the pod may exist.
    async fn run(mut self, pod: &mut TrialPod<'_>) -> Result<(String, KernelReport), Failure> {
        // A kubelet may stop the pod soon, so everything that takes time comes first.
        let candidates = self.candidates().await?;
        self.steps.run(CREATE_POD, pod.create()).await?;
        let image = self.start_container(pod, candidates).await?;
        let executed = pod.execute(kernel::look());
        let output = self.steps.run("execute command", executed).await?;
        self.steps.run("read log", pod.read_log()).await?;
        let stopped = pod.stop_container();
        self.steps.run("stop container", stopped).await?;
        let removed = pod.remove_container();
        self.steps.run("remove container", removed).await?;
        self.steps.run("stop pod", pod.stop()).await?;
        self.steps.run("remove pod", pod.remove()).await?;
        Ok((image, KernelReport::parse(&output)))
    }

    async fn candidates(&mut self) -> Result<Vec<Candidate>, Failure> {
        let (daemon, handler) = (self.daemon, self.handler);
        let Some(name) = self.image else {
            let present = images::present(daemon, handler);
            return self.steps.run("find image", present).await;
        };
        let has = images::has(daemon, handler, name);
        if !self.steps.run("find image", has).await? {
            let pull = images::pull(daemon, handler, name);
            self.steps.run("pull image", pull).await?;
        }
        Ok(vec![images::named(name)])
    }

    /// Starts a container of the first image that has a shell, and returns the image's name.
    async fn start_container(
        &mut self,
        pod: &mut TrialPod<'_>,
        candidates: Vec<Candidate>,
    ) -> Result<String, Failure> {
        let mut without_shell = Vec::new();
        for Candidate { name, spec } in candidates {
            let created = pod.create_container(&spec);
            self.steps.run("create container", created).await?;
            let started = pod.start_container();
            match self.steps.run("start container", started).await? {
                Started::Runs => {
                    self.steps.say("image", &name);
                    return Ok(name);
                }
                Started::NoShell => {
                    self.steps.say("image", &format!("{name} has no shell"));
                    without_shell.push(name);
                }
            }
        }
        Err(Failure::new(format!(
            "these images have no shell: {}; name an image with a shell: --image IMAGE",
            without_shell.join(", ")
        )))
    }
}

impl<'a> Tried<'a> {
    fn new(state: &State, handler: &'a Handler, prints: bool) -> Tried<'a> {
        let mut backends = state.backends.iter();
        let backend = backends.find(|backend| backend.name == handler.backend);
        Tried {
            handler,
            backend: backend.cloned().unwrap_or_default(),
            image: None,
            steps: Steps::new(prints),
            attempts: 0,
            observed: None,
            failure: None,
            warning: None,
            leftovers: Vec::new(),
        }
    }

    fn runtime(&self) -> String {
        let Backend {
            runtime, version, ..
        } = &self.backend;
        format!("{runtime} {version}").trim().to_owned()
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

    /// Compares the isolation with the handler's name, and prints the result of the try.
    fn conclude(&mut self) {
        if let Some(observed) = &self.observed {
            let names = [&*self.handler.name, &*self.handler.backend_handler];
            self.warning = isolation::broken_promise(names, observed);
            let evidence = observed.evidence.join(", ");
            let isolation = observed.isolation.words();
            self.steps
                .say("isolation", &format!("{isolation}: {evidence}"));
        }
        let result = match &self.failure {
            None => "ok: this handler starts pods".to_owned(),
            Some(failure) => format!("failed: {failure}"),
        };
        self.steps.say("result", &result);
        for problem in self.warning.iter().chain(&self.leftovers) {
            let name = &self.handler.name;
            terminal::complain(&format!("criswitch: handler {name}: {problem}\n"));
        }
    }

    fn problems(&self) -> Vec<Json> {
        let name = &self.handler.name;
        let failure = self.failure.iter();
        let problems = failure.chain(&self.warning).chain(&self.leftovers);
        let problems = problems.map(|problem| format!("handler {name}: {problem}"));
        problems.map(|problem| output::problem(&problem)).collect()
    }

    fn row(&self) -> [String; HEADER.len()] {
        let isolation = self.observed.as_ref();
        let isolation = isolation.map_or("", |observed| observed.isolation.words());
        [
            self.handler.name.clone(),
            self.handler.backend.clone(),
            self.runtime(),
            self.result().to_owned(),
            isolation.to_owned(),
            short(self.steps.time()),
        ]
    }

    fn json(&self) -> Json {
        let observed = self.observed.as_ref();
        json!({
            "handler": self.handler.name,
            "backend": self.handler.backend,
            "backendHandler": self.handler.backend_handler,
            "runtime": self.backend.runtime,
            "version": self.backend.version,
            "image": self.image,
            "result": self.result(),
            "failure": self.failure,
            "attempts": self.attempts,
            "steps": self.steps.json(),
            "milliseconds": milliseconds(self.steps.time()),
            "isolation": observed.map(Observed::json),
            "warning": self.warning,
            "leftovers": self.leftovers,
        })
    }
}
