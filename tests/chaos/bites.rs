//! The fault simulation notices each protection that is missing, and passes with all of them.
// No crate could reach it, and what panics is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod simulation;

use clap::ValueEnum;
use simulation::plan::Plan;
use simulation::sabotage::Sabotage;

/// Seeds that are tried until a sabotage shows.
const SEEDS: u64 = 400;

#[test]
fn each_missing_protection_is_noticed() {
    for sabotage in Sabotage::value_variants() {
        let shows = |seed: &u64| {
            let plan = Plan::of(*seed);
            simulation::play(&plan, Some(*sabotage)).is_err()
        };
        assert!(
            (0..SEEDS).any(|seed| shows(&seed)),
            "{sabotage:?} goes unnoticed"
        );
    }
}

#[test]
fn the_switch_as_it_is_passes() {
    for seed in 0..50 {
        let played = simulation::play(&Plan::of(seed), None);
        played.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
