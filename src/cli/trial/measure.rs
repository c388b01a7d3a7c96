//! `--measure`: repeated runs of an empty pod, and of a pod with one container that sleeps.

use std::time::{Duration, Instant};

use criswitch::codec::cri::ImageSpec;
use criswitch::platform::PodUsage;
use criswitch::platform::usage::Machine;

use super::call::Failure;
use super::cost::{Cost, mebibytes};
use super::pod::TrialPod;
use super::pods::{Pods, Stopped};
use super::steps::{self, Steps};

/// The number of pods that are made for one run if something else stops them.
const ATTEMPTS: usize = 10;

/// The figures of one pod.
pub(super) struct Run {
    /// The usage at the end of the window.
    pub(super) usage: PodUsage,
    /// The processor time until the pod, or its container, had started.
    pub(super) start_cpu: Duration,
    /// The processor time within the window, and the length of the window.
    pub(super) idle_cpu: Duration,
    pub(super) window: Duration,
    pub(super) start: Duration,
    pub(super) stop: Duration,
}

/// A measurement of one handler.
pub(super) struct Measurement<'a> {
    pub(super) machine: &'a Machine,
    pub(super) image: ImageSpec,
    /// The number of runs of each pod.
    pub(super) runs: usize,
    /// The time that a pod is left alone between its start and the reading of its memory. A kubelet stops an unknown pod
    /// after 1 to 3 seconds, so a long time rarely passes undisturbed.
    pub(super) idle: Duration,
}

impl Measurement<'_> {
    /// Makes the pods one after the other, and prints a line after each run.
    pub(super) async fn run(&self, pods: &mut Pods<'_>, steps: &Steps) -> Result<Cost, Stopped> {
        let mut cost = Cost::default();
        for number in 1..=self.runs {
            let name = format!("run {number} of {}", self.runs);
            let named = |stopped| match stopped {
                Stopped::Failed(why) => Stopped::Failed(format!("{name}: {why}")),
                Stopped::Interrupted => Stopped::Interrupted,
            };
            let empty = self.pod(pods, None).await.map_err(named)?;
            let container = self.pod(pods, Some(&self.image)).await.map_err(named)?;
            let [of_empty, of_container] = [&empty, &container].map(|run| {
                let memory = mebibytes(run.usage.total().memory_bytes);
                format!("{memory:.1} MiB, {} to start", steps::short(run.start))
            });
            let text = format!("empty pod {of_empty}; with a container {of_container}");
            steps.say(&name, &text);
            cost.empty.push(empty);
            cost.container.push(container);
        }
        Ok(cost)
    }

    /// Measures one pod: an empty one, or one with a container of this image.
    async fn pod(&self, pods: &mut Pods<'_>, image: Option<&ImageSpec>) -> Result<Run, Stopped> {
        // The lines of these steps would hide the progress of the runs.
        let mut steps = Steps::new(false);
        let work = async |pod: &mut TrialPod<'_>, steps: &mut Steps| {
            let begin = steps.time();
            steps.run(steps::CREATE_POD, pod.create()).await?;
            if let Some(image) = image {
                // The try has shown that the image has a shell.
                pod.run_container(steps, image).await?;
            }
            let start = steps.time() - begin;
            let mut run = steps.run("measure", self.look(pod)).await?;
            run.start = start;
            let begin = steps.time();
            if image.is_some() {
                pod.end_container(steps).await?;
            }
            pod.end(steps).await?;
            run.stop = steps.time() - begin;
            Ok(run)
        };
        pods.with_pod(&mut steps, (&mut 0, ATTEMPTS), work).await
    }

    /// Reads what a pod uses at the begin and at the end of the window.
    async fn look(&self, pod: &TrialPod<'_>) -> Result<Run, Failure> {
        let before = self.usage(pod)?;
        let begin = Instant::now();
        tokio::time::sleep(self.idle).await;
        let usage = self.usage(pod)?;
        let window = begin.elapsed();
        // Figures of a pod that has ended are too low.
        if pod.was_stopped().await {
            return Err(Failure::new("the pod has ended".to_owned()));
        }
        let (start_cpu, cpu) = (before.total().cpu, usage.total().cpu);
        Ok(Run {
            usage,
            start_cpu,
            idle_cpu: cpu.saturating_sub(start_cpu),
            window,
            start: Duration::ZERO,
            stop: Duration::ZERO,
        })
    }

    fn usage(&self, pod: &TrialPod<'_>) -> Result<PodUsage, Failure> {
        let usage = self.machine.usage_of(&pod.ids());
        usage.map_err(|error| Failure::new(error.to_string()))
    }
}
