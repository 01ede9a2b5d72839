//! Every seed, and some thousand changes of them by a fixed seed: the same inputs on every machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use sekisho_fuzz::{Ended, Search, TARGETS, corpus};

/// Of each target. More of them run with `cargo xtask fuzz`.
const CHANGED: usize = 1_500;
/// As much as a main thread has, on which files of a configuration are read. Without optimization a deep one needs more than
/// the two megabytes of a test.
const STACK: usize = 8 << 20;

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let mut names: Vec<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    names.sort();
    assert_eq!(corpus::folders().unwrap(), names);
    for target in TARGETS {
        let seeds = corpus::read(&target).unwrap();
        assert!(seeds.len() >= 4, "{} has {} seeds", target.name, seeds.len());
        assert!(seeds.iter().all(|(_, seed)| seed.len() <= 16 << 10), "{}: a seed is small", target.name);
    }
}

#[test]
fn no_seed_and_no_change_of_one_makes_a_parser_panic() {
    let searched = std::thread::Builder::new().stack_size(STACK).spawn(search).unwrap().join();
    searched.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn search() {
    for target in TARGETS {
        let seeds = corpus::read(&target).unwrap();
        let mut search = Search::new(target, seeds.iter().map(|(_, seed)| seed.clone()).collect(), 1);
        let mut ways = 0;
        for (name, seed) in &seeds {
            match search.run(seed) {
                Ended::Crash(text) => panic!("{}/{name}: {text}", target.name),
                Ended::New(_) => ways += 1,
                Ended::Before => {}
            }
        }
        // Seeds that all end alike show nothing of a parser.
        assert!(ways > 1, "{}", target.name);
        for _ in 0..CHANGED {
            let (input, ended) = search.step();
            if let Ended::Crash(text) = ended {
                panic!(
                    "{}: {text}: {:?} kept in {:?}",
                    target.name,
                    input.escape_ascii().to_string(),
                    corpus::keep_crash(&target, &input)
                );
            }
        }
    }
}
