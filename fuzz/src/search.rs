//! Runs a target on changed inputs, and goes on from those that led somewhere new.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Target;
use crate::mutate::{Dice, mutate, words};

/// So many inputs are gone on from at most, so that a target whose words are never the same stays cheap.
const POOL: usize = 4_096;

/// A search with one target.
#[derive(Debug)]
pub struct Search {
    target: Target,
    dice: Dice,
    words: Vec<Vec<u8>>,
    pool: Vec<Vec<u8>>,
    seen: HashSet<u64>,
    seeds: usize,
}

/// How an input ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Before,
    /// In words that no input had before.
    New(String),
    /// With this panic.
    Crash(String),
}

impl Search {
    /// Replays nothing: that is [`run`](Self::run)'s.
    pub fn new(target: Target, corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        let (words, seeds) = (words(&corpus), corpus.len());
        Self { target, dice: Dice::new(seed), words, pool: corpus, seen: HashSet::new(), seeds }
    }

    /// Runs the target once.
    pub fn run(&mut self, input: &[u8]) -> Ended {
        let run = self.target.run;
        match catch_unwind(AssertUnwindSafe(|| run(input))) {
            Ok(words) if self.seen.insert(signature(&words, input)) => Ended::New(words),
            Ok(_) => Ended::Before,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Ended::Crash(text.unwrap_or_default())
            }
        }
    }

    /// Makes the next input, runs it, and keeps it if it led somewhere new.
    pub fn step(&mut self) -> (Vec<u8>, Ended) {
        let mut input = if self.pool.is_empty() { Vec::new() } else { self.dice.one(&self.pool).clone() };
        mutate(&mut self.dice, &mut input, &self.pool, &self.words);
        let ended = self.run(&input);
        if matches!(ended, Ended::New(_)) && input.len() <= 8 << 10 {
            // The seeds stay.
            if self.pool.len() < POOL {
                self.pool.push(input.clone());
            } else if self.seeds < POOL {
                let place = self.seeds + self.dice.below(POOL - self.seeds);
                self.pool[place].clone_from(&input);
            }
        }
        (input, ended)
    }
}

/// Of the words only those that are the parser's own: no numbers, and nothing that the input said itself.
fn signature(words: &str, input: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let own = words.split(|c: char| !c.is_alphanumeric()).filter(|word| {
        word.len() > 1 && !word.contains(|c: char| !c.is_ascii_alphabetic()) && !is_in(word.as_bytes(), input)
    });
    own.for_each(|word| word.hash(&mut hasher));
    hasher.finish()
}

fn is_in(word: &[u8], input: &[u8]) -> bool {
    input.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deep enough that no blind change finds it.
    fn deep(input: &[u8]) -> String {
        let depth = input.iter().zip(b"cake").take_while(|(given, wanted)| given == wanted).count();
        assert!(depth < 4, "the end");
        ["none", "one", "two", "three"][depth].to_owned()
    }

    #[test]
    fn a_search_finds_its_way_and_does_so_again() {
        let found = || {
            let mut search = Search::new(Target { name: "deep", run: deep }, vec![b"tea".to_vec()], 7);
            (0..2_000_000).find(|_| matches!(search.step().1, Ended::Crash(_)))
        };
        let first = found();
        assert!(first.is_some());
        assert_eq!(first, found());
    }

    #[test]
    fn numbers_and_what_was_said_are_no_news() {
        let of = |words: &str| signature(words, b"{ten: eleven}");
        assert_eq!(of("line 7: `ten` is no number"), of("line 19: `eleven` is no number"));
        assert_ne!(of("line 7: `ten` is no number"), of("line 7: `ten` is no name"));
    }
}
