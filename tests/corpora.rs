//! Runs the oracles of the fuzz targets for every input of their corpora, and for random bytes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[path = "fuzz/oracles/oracles.rs"]
mod oracles;

const RANDOM_INPUTS: usize = 500;
const LONGEST_INPUT: usize = 400;

/// Runs a target's check, and names the input if the check fails.
fn run(name: &str, check: fn(&[u8]), input: &str, data: &[u8]) {
    let outcome = std::panic::catch_unwind(|| check(data));
    assert!(outcome.is_ok(), "target {name}, input {input}: {data:?}");
}

/// The input of one line of a corpus, which is hexadecimal.
fn unpacked(line: &str) -> Vec<u8> {
    let byte = |start| u8::from_str_radix(&line[start..start + 2], 16).unwrap();
    (0..line.len()).step_by(2).map(byte).collect()
}

#[test]
fn every_input_of_the_corpora_passes_its_oracle() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (name, check) in oracles::TARGETS {
        let corpus = std::fs::read_to_string(corpora.join(name).with_extension("hex")).unwrap();
        assert!(!corpus.is_empty(), "target {name} has no corpus");
        for (number, line) in (1..).zip(corpus.lines()) {
            run(name, *check, &format!("line {number}"), &unpacked(line));
        }
    }
}

#[test]
fn random_inputs_pass_every_oracle() {
    for (name, check) in oracles::TARGETS {
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..RANDOM_INPUTS {
            let length = random.usize(..LONGEST_INPUT);
            let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(length)
                .collect();
            run(name, *check, &number.to_string(), &data);
        }
    }
}

#[test]
fn every_fuzz_target_is_replayed_here() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/fuzz_targets");
    let files = std::fs::read_dir(targets)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut names: Vec<_> = files
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(
        names
            .iter()
            .eq(oracles::TARGETS.iter().map(|(name, _)| name))
    );
}
