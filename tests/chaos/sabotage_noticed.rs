//! The fault simulation fails if criswitch lacks one of its protections, and passes if criswitch has all of them.

use clap::ValueEnum;

use crate::simulation::files::{Edit, RUNTIMES};
use crate::simulation::plan::{Fault, Meanwhile, Op, Plan, Step, row};
use crate::simulation::sabotage::Sabotage;
use crate::{shorten, simulation};

/// The largest number of seeds to try until the judge notices a sabotage.
const SEEDS: u64 = 5000;
/// The schedules that criswitch without sabotage must pass. A schedule takes 0.3 s without optimization.
const SCHEDULES: u64 = if cfg!(debug_assertions) { 50 } else { 2000 };

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes without optimization; the step `simulation` runs it"
)]
fn each_missing_protection_is_noticed() {
    let all = Sabotage::value_variants().iter();
    let unnoticed: Vec<_> = all.filter(|it| shown_by(**it).is_none()).collect();
    assert!(unnoticed.is_empty(), "unnoticed: {unnoticed:?}");
}

/// A pod ends and is listed. Then all runtimes die, and a client asks for the pod's status. Random schedules have this
/// order too rarely.
fn a_pod_ends() -> Plan {
    let call = |name| Step::Call(Op::plain(row(name), 0));
    let mut steps = Vec::new();
    for name in ["RunPodSandbox", "StopPodSandbox", "ListPodSandbox"] {
        steps.extend([call(name), Step::Wait(1000)]);
    }
    steps.extend((0..RUNTIMES).map(|at| Step::Fault(at, Fault::Die)));
    steps.extend([
        Step::Wait(1000),
        call("PodSandboxStatus"),
        Step::Wait(20_000),
    ]);
    Plan {
        seed: 0,
        topology: 0,
        steps,
    }
}

#[test]
fn a_kept_status_that_is_outdated_is_noticed() {
    let violation = simulation::play(&a_pod_ends(), Some(Sabotage::KeepChanged)).unwrap_err();
    assert!(violation.contains("did not execute"), "{violation}");
    simulation::play(&a_pod_ends(), None).unwrap();
}

/// A schedule that fails with `sabotage` and passes without it.
fn shown_by(sabotage: Sabotage) -> Option<Plan> {
    let fails = |plan: &Plan| {
        let violation = simulation::play(plan, Some(sabotage)).err();
        // A panic does not count, because the judge did not find it.
        violation.is_some_and(|violation| !violation.starts_with("a panic"))
    };
    let mut plans = std::iter::once(a_pod_ends()).chain((0..SEEDS).map(Plan::of));
    plans.find(|plan| fails(plan) && simulation::play(plan, None).is_ok())
}

#[test]
fn a_schedule_that_fails_is_made_shorter() {
    let plan = shown_by(Sabotage::LeaveOut).unwrap();
    let shortened = shorten::shortened(&plan, Some(Sabotage::LeaveOut));
    assert!(
        shortened.steps.len() * 2 < plan.steps.len(),
        "{shortened:?}"
    );
    shorten::play_again(&shortened, Some(Sabotage::LeaveOut)).unwrap_err();
}

#[test]
fn criswitch_without_sabotage_passes() {
    for seed in 0..SCHEDULES {
        let played = simulation::play(&Plan::of(seed), None);
        played.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

/// The last state of the removed backend must not be removed after the first state of the added backend is saved.
#[test]
fn a_backend_that_a_reload_removes_and_the_next_reload_adds_again_stays_saved() {
    let lead = |handler, runtime, file| Edit::Lead {
        handler,
        runtime,
        file,
    };
    let reload = |edits| Step::Reload(edits, None);
    let plan = Plan {
        seed: 0,
        topology: 0,
        steps: vec![
            reload(vec![lead(3, 2, 2), Edit::Rename(3, 4)]),
            Step::Wait(1),
            reload(vec![lead(4, 0, 0), lead(0, 1, 0)]),
            reload(vec![Edit::AutoRegister(2, true), lead(3, 3, 1)]),
            Step::HandOver(Meanwhile::Nothing),
        ],
    };
    shorten::play_again(&plan, None).unwrap();
}
