//! Rounds of all contenders in turn, and the median of each: on a noisy machine only ratios of interleaved rounds mean
//! anything.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

pub(crate) struct Contender<'a> {
    /// Runs the whole sequence of one thread, and says what of it counts.
    pub(crate) run: Box<dyn Fn(usize) -> Duration + Sync + 'a>,
}

impl<'a> Contender<'a> {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
    pub(crate) fn new(run: impl Fn(usize) + Sync + 'a) -> Self {
        Self::timed(move |thread| {
            let start = Instant::now();
            run(thread);
            start.elapsed()
        })
    }

    /// For those that have to prepare what they ask for in between.
    pub(crate) fn timed(run: impl Fn(usize) -> Duration + Sync + 'a) -> Self {
        Self { run: Box::new(run) }
    }
}

/// Nanoseconds per operation of each contender in each round, on `threads` pinned threads.
pub(crate) fn rounds(contenders: &[Contender<'_>], threads: usize, operations: usize, rounds: usize) -> Vec<Vec<f64>> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..=rounds {
        for (contender, times) in contenders.iter().zip(&mut times) {
            let barrier = Barrier::new(threads);
            let slowest = std::thread::scope(|scope| {
                let run = |thread: usize| {
                    if let Some(core) = cores.get(thread % cores.len().max(1)) {
                        core_affinity::set_for_current(*core);
                    }
                    barrier.wait();
                    (contender.run)(thread)
                };
                let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || run(t))).collect();
                handles.into_iter().map(|h| h.join().unwrap()).max().unwrap()
            });
            // The first round warms caches and fills maps.
            if round > 0 {
                times.push(slowest.as_nanos() as f64 / operations as f64);
            }
        }
    }
    black_box(times)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of the ratios of each round: what disturbs a round disturbs both sides of it.
pub(crate) fn ratio(above: &[f64], below: &[f64]) -> f64 {
    median(&above.iter().zip(below).map(|(above, below)| above / below).collect::<Vec<_>>())
}

pub(crate) fn row(what: &str, figures: &[(&str, String)]) {
    let figures: Vec<String> = figures.iter().map(|(name, value)| format!("{name} {value}")).collect();
    println!("| {what} | {} |", figures.join(" | "));
}
