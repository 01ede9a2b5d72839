//! What a subject costs in memory under each rule, with ten requests over half a window.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use sekisho::clock::ManualClock;
use sekisho::key::Subject;
use sekisho::limits::memory::{Hold, Limiter};
use sekisho::limits::{Capacity, Cost, MemoryStore, Policy};

use crate::scenes::{Act, Scene};

const SUBJECTS: usize = 100_000;

pub(crate) fn print(scenes: &[Scene], mut out: impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(out, "bytes of memory per subject, of {SUBJECTS}, with ten requests each over half a window")?;
    let subjects = (0..SUBJECTS).map(|i| Subject::new(format!("user-{i}"))).collect::<Result<Vec<Subject>, _>>()?;
    for scene in scenes {
        let clock = ManualClock::at(scene.start);
        let capacity = Capacity { subjects: 2 * SUBJECTS, ..Capacity::default() };
        let store = MemoryStore::new(capacity, Arc::new(clock.clone()));
        let limiter = store.limiter(Arc::new(Policy::new("p", vec![scene.rule.clone()])?));
        let open = if matches!(scene.act, Act::Hold { .. }) { reserve_all(&limiter, &subjects)? } else { Vec::new() };
        for _ in 0..10 {
            for subject in &subjects {
                limiter.check(subject);
            }
            clock.advance(scene.step / 2);
        }
        writeln!(out, "{:>16} {:>5}", scene.name, store.bytes() / SUBJECTS)?;
        drop(open);
    }
    Ok(())
}

/// One open reservation each: without one a concurrency rule keeps nothing.
fn reserve_all<'a>(limiter: &'a Limiter, subjects: &[Subject]) -> Result<Vec<Hold<'a>>, Box<dyn Error>> {
    let mut open = Vec::with_capacity(subjects.len());
    for subject in subjects {
        open.extend(limiter.reserve(subject, &Cost::default())?.ok());
    }
    Ok(open)
}
