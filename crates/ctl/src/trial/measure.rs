//! `--measure`: repeated runs of an empty pod, and of a pod with one container that sleeps.

use std::time::Duration;

use criswitch_cri::codec::cri::ImageSpec;
use criswitch_platform::usage::Machine;
use criswitch_platform::{KernelReport, PodUsage, kernel};
use tokio::time::Instant;

use super::call::TryFailure;
use super::cost::{Cost, Idle, Run, mebibytes};
use super::pod::TrialPod;
use super::pods::{Stopped, TryPods};
use super::steps::{self, Steps};

/// After this time, the measurement ends even if two windows do not agree.
const LONGEST_SETTLING: Duration = Duration::from_secs(60);
/// Two windows agree if their processor times differ by less than this part of the larger one, or by one tick, the unit
/// in which the kernel counts the processor time of processes outside of cgroups.
const AGREEMENT: f64 = 0.1;
const TICK: Duration = Duration::from_millis(10);

/// A measurement of one handler.
pub(super) struct Measurement<'a> {
    pub(super) machine: &'a Machine,
    pub(super) image: ImageSpec,
    /// The number of runs of each pod.
    pub(super) runs: usize,
    /// The length of a window. A kubelet stops an unknown pod after 1 to 3 seconds, so long windows rarely pass
    /// undisturbed.
    pub(super) window: Duration,
    /// Whether the handler runs its pods in virtual machines.
    pub(super) is_virtual_machine: bool,
}

impl Measurement<'_> {
    /// Makes the pods one after the other, and prints a line after each run.
    pub(super) async fn run(&self, pods: &mut TryPods<'_>, steps: &Steps) -> Result<Cost, Stopped> {
        let mut cost = Cost::default();
        for number in 1..=self.runs {
            let name = format!("run {number} of {}", self.runs);
            let both = async {
                Ok((
                    self.pod(pods, None).await?,
                    self.pod(pods, Some(&self.image)).await?,
                ))
            };
            let (empty, container) = both.await.map_err(|stopped| match stopped {
                Stopped::Failed(why) => Stopped::Failed(format!("{name}: {why}")),
                Stopped::Interrupted => Stopped::Interrupted,
            })?;
            let [of_empty, of_container] = [&empty, &container].map(|run| {
                let memory = mebibytes(run.idle.usage.total().memory_bytes);
                format!(
                    "{memory:.1} MiB, {} to start, idle after {}",
                    steps::rounded_time(run.start),
                    steps::rounded_time(run.idle.settling)
                )
            });
            steps.say(
                &name,
                &format!("empty pod {of_empty}; with a container {of_container}"),
            );
            cost.empty.push(empty);
            cost.container.push(container);
        }
        Ok(cost)
    }

    /// Measures one pod: an empty one, or one with a container of this image.
    async fn pod(&self, pods: &mut TryPods<'_>, image: Option<&ImageSpec>) -> Result<Run, Stopped> {
        // The lines of these steps would hide the progress of the runs.
        let mut steps = Steps::new(false);
        let parent = pods.settings.cgroup_parent();
        let work = async |pod: &mut TrialPod<'_>, steps: &mut Steps| {
            let begin = steps.time();
            steps.run(steps::CREATE_POD, pod.create()).await?;
            if let Some(image) = image {
                // The try has shown that the image has a shell.
                pod.run_container(steps, image).await?;
            }
            let start = steps.time() - begin;
            let idle = steps.run("measure", self.idle(pod, parent)).await?;
            let free_in_guest_bytes = match image {
                Some(_) if self.is_virtual_machine => {
                    KernelReport::parse(&pod.execute(kernel::look()).await?).free_memory_bytes
                }
                _ => None,
            };
            let begin = steps.time();
            if image.is_some() {
                pod.end_container(steps).await?;
            }
            pod.end(steps).await?;
            Ok(Run {
                idle,
                free_in_guest_bytes,
                start,
                stop: steps.time() - begin,
            })
        };
        pods.with_pod(&mut steps, (&mut 0, Duration::MAX), work)
            .await
    }

    async fn idle(&self, pod: &TrialPod<'_>, parent: Option<&str>) -> Result<Idle, TryFailure> {
        let idle = idle(self.window, || {
            self.machine
                .usage_of(&pod.ids(), parent)
                .map_err(|error| TryFailure::new(error.to_string()))
        })
        .await?;
        // Figures of a pod that has ended are too low.
        if pod.was_stopped().await {
            Err(TryFailure::new("the pod has ended".to_owned()))
        } else {
            Ok(idle)
        }
    }
}

/// Reads the usage at the end of each window until two windows agree.
async fn idle<E>(window: Duration, read: impl Fn() -> Result<PodUsage, E>) -> Result<Idle, E> {
    let start_cpu = read()?.total().cpu;
    let begin = Instant::now();
    // The times and processor times at the ends of the last windows.
    let (mut first, mut second) = (None, (begin, start_cpu));
    loop {
        tokio::time::sleep(window).await;
        let usage = read()?;
        let third = (Instant::now(), usage.total().cpu);
        if let Some(first) = first {
            let has_settled = agree(rate(first, second), rate(second, third), window);
            if has_settled || begin.elapsed() >= LONGEST_SETTLING {
                let (from, cpu): (Instant, Duration) = first;
                return Ok(Idle {
                    start_cpu,
                    cpu: third.1.saturating_sub(cpu),
                    window: third.0 - from,
                    settling: from - begin,
                    has_settled,
                    usage,
                });
            }
        }
        (first, second) = (Some(second), third);
    }
}

/// The part of a processor that is used between two readings.
fn rate((begin, before): (Instant, Duration), (end, after): (Instant, Duration)) -> f64 {
    after.saturating_sub(before).div_duration_f64(end - begin)
}

fn agree(one: f64, other: f64, window: Duration) -> bool {
    let margin = (AGREEMENT * one.max(other)).max(TICK.div_duration_f64(window));
    (one - other).abs() <= margin
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use criswitch_platform::Usage;

    use super::*;

    /// Measures a pod in windows of 1 s. The pod uses these milliseconds in each second, and then the last of them.
    async fn measured(milliseconds: &[u64]) -> Idle {
        let used = RefCell::new((0, milliseconds.iter()));
        let last = milliseconds[milliseconds.len() - 1];
        let read = || {
            let mut used = used.borrow_mut();
            used.0 += used.1.next().copied().unwrap_or(last);
            let cpu = Duration::from_millis(used.0);
            Ok::<_, ()>(PodUsage {
                in_cgroups: Usage {
                    memory_bytes: 0,
                    cpu,
                },
                ..PodUsage::default()
            })
        };
        idle(Duration::from_secs(1), read).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_tail_of_a_start_is_not_idle() {
        let idle = measured(&[900, 200, 60, 40, 21, 20]).await;
        let settling = Duration::from_secs(3);
        assert_eq!((idle.settling, idle.has_settled), (settling, true));
        assert_eq!(idle.start_cpu, Duration::from_millis(900));
        assert_eq!(idle.cpu, Duration::from_millis(41));
        assert_eq!(idle.window, Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_idle_at_once_needs_two_windows() {
        let idle = measured(&[500, 0]).await;
        assert_eq!(
            (idle.settling, idle.window),
            (Duration::ZERO, Duration::from_secs(2))
        );
        assert_eq!((idle.cpu, idle.has_settled), (Duration::ZERO, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_does_not_settle_is_measured_for_a_minute() {
        let restless: Vec<u64> = [100, 900].into_iter().cycle().take(100).collect();
        let idle = measured(&restless).await;
        assert_eq!(
            (idle.settling, idle.has_settled),
            (Duration::from_secs(58), false)
        );
        assert_eq!(idle.cpu, Duration::from_secs(1));
    }
}
