//! Plays a failed schedule again, and shortens it.

use crate::simulation::plan::Plan;
use crate::simulation::play;
use crate::simulation::sabotage::Sabotage;

/// The largest number of times that a failed schedule is played until it fails again.
const REPLAYS: u32 = 8;

/// Plays a schedule until it fails, at most `REPLAYS` times. The same schedule may fail in one run and pass in another,
/// because tokio wakes the waiters of an event in a random order.
pub fn play_again(plan: &Plan, sabotage: Option<Sabotage>) -> Result<(), String> {
    (0..REPLAYS).try_for_each(|_| play(plan, sabotage).map(drop))
}

/// Removes steps from a failed schedule as long as the shorter schedule still fails.
pub fn shortened(plan: &Plan, sabotage: Option<Sabotage>) -> Plan {
    let mut plan = plan.clone();
    let mut size = plan.steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < plan.steps.len() {
            let mut shorter = plan.clone();
            shorter.steps.drain(at..(at + size).min(plan.steps.len()));
            match play_again(&shorter, sabotage) {
                Ok(()) => at += size,
                Err(_) => plan = shorter,
            }
        }
        size /= 2;
    }
    plan
}
