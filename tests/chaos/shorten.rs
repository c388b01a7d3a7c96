//! A schedule that has failed, played again and made shorter.

use crate::simulation::plan::Plan;
use crate::simulation::play;
use crate::simulation::sabotage::Sabotage;

/// How often a schedule that has failed is played again until it fails again.
const REPLAYS: u32 = 8;

/// Plays a schedule until it fails, but not for ever: tokio wakes those who wait for one thing in a random order, so one
/// time may differ from another.
pub fn play_again(plan: &Plan, sabotage: Option<Sabotage>) -> Result<(), String> {
    (0..REPLAYS).try_for_each(|_| play(plan, sabotage).map(drop))
}

/// The same schedule with as few steps as still violate something.
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
