//! The pods of one handler. Each pod is removed in any case. If something other than this command stops a pod, the work
//! is repeated in a new pod.

use std::pin::Pin;
use std::time::{Duration, Instant};

use criswitch_advice::verdict;
use criswitch_client::running::{self, Running};

use super::call::TryFailure;
use super::pod::{PodSettings, TrialPod};
use super::steps::{CREATE_POD, Steps};

/// The largest number of pods for the same work, if something else, such as a kubelet, stops each of them. On a busy
/// machine, a kubelet often stops a pod before the work ends. After `LEAST` pods, further pods are made only within a
/// time limit.
const MOST: usize = 10;
const LEAST: usize = 3;

/// The future that ends at Ctrl-C.
pub(super) type Interrupt = Pin<Box<dyn Future<Output = ()>>>;

/// Makes the pods of one handler.
pub(super) struct TryPods<'a> {
    pub(super) daemon: &'a Running,
    pub(super) settings: PodSettings<'a>,
    pub(super) interrupt: &'a mut Interrupt,
    /// Whether the handler was not tried, because its backend has no image with a shell.
    pub(super) untested: &'a mut bool,
    /// The pods that may be left, and how to remove them.
    pub(super) leftovers: &'a mut Vec<String>,
}

/// Why the work in a pod did not succeed.
pub(super) enum Stopped {
    /// The step that failed, and why.
    Failed(String),
    Interrupted,
}

impl TryPods<'_> {
    /// Runs `work` in a new pod, and removes the pod. If something else stops the pod, repeats this with a new pod: at
    /// most [`MOST`] pods, and after [`LEAST`] pods only within `limit`. `attempts` counts the pods.
    pub(super) async fn with_pod<T>(
        &mut self,
        steps: &mut Steps,
        (attempts, limit): (&mut usize, Duration),
        mut work: impl AsyncFnMut(&mut TrialPod<'_>, &mut Steps) -> Result<T, TryFailure>,
    ) -> Result<T, Stopped> {
        let began = Instant::now();
        loop {
            *attempts += 1;
            let repeats = *attempts < LEAST || *attempts < MOST && began.elapsed() < limit;
            self.check_backend().await.map_err(Stopped::Failed)?;
            let mut pod = TrialPod::new(self.daemon, &self.settings)
                .map_err(|failure| Stopped::Failed(failure.text))?;
            let worked = tokio::select! {
                // After an interruption no further pod is created.
                biased;
                () = self.interrupt.as_mut() => None,
                worked = work(&mut pod, steps) => Some(worked),
            };
            *self.untested = matches!(&worked, Some(Err(failure)) if failure.needs_image);
            let was_stopped = matches!(worked, Some(Err(_))) && pod.was_stopped().await;
            let ended = match worked {
                None => {
                    steps.interrupt();
                    Err(Stopped::Interrupted)
                }
                Some(worked) => worked
                    .map_err(|failure| Stopped::Failed(self.words(steps, &failure, was_stopped))),
            };
            self.leftovers.extend(pod.clean_up().await.err());
            if !was_stopped || !repeats {
                return ended;
            }
            let why = "because something else, such as a kubelet, stopped the pod";
            steps.say("again", why);
        }
    }

    /// Checks that the backend is ready. Otherwise the creation of a pod would fail late, and its failure would not say
    /// whether the backend got the call.
    async fn check_backend(&self) -> Result<(), String> {
        let state = self.daemon.state().await.map_err(|it| format!("{it:#}"))?;
        let backend =
            running::backend(&state, self.settings.backend).map_err(|error| error.to_string())?;
        if verdict::is_ready(backend) {
            Ok(())
        } else {
            Err(verdict::state(backend))
        }
    }

    /// Why a step failed, and what to try if the runtime's words do not say it.
    fn words(&self, steps: &Steps, failure: &TryFailure, was_stopped: bool) -> String {
        let step = steps.last().map_or("", |step| step.name);
        let text = &failure.text;
        let lower = text.to_lowercase();
        let is_network = step == CREATE_POD && (lower.contains("network") || lower.contains("cni"));
        let hint = if was_stopped {
            "; something else stopped the pod, such as a kubelet, which stops each pod that it does not know: stop the \
             kubelet during the try"
        } else if is_network && !self.settings.host_network {
            "; if the network plugin needs a pod that the API server knows, try --host-network"
        } else {
            ""
        };
        format!("{step}: {text}{hint}")
    }
}
