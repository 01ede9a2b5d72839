//! The load, and what the engine makes of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{ManualClock, Timestamp};
use sekisho::key::Subject;
use sekisho::limits::{Capacity, Charge, Cost, Limits, MemoryStore, Policy, ReservationId, ReserveOptions, Reserved};

use crate::scenes::{Act, Scene};

/// Thousandths of a step in one picture: sixty steps, six windows.
pub(crate) const SPAN: u64 = 60_000;

const POLICY: &str = "p";

/// What happened, in thousandths of a step from the start.
pub(crate) struct Played {
    pub(crate) offered: Vec<u64>,
    /// When each admitted one may start.
    pub(crate) admitted: Vec<u64>,
    /// When each reservation ended.
    pub(crate) ended: Vec<u64>,
}

/// A burst before an edge of a window and a stream behind it, a trickle, an overload, silence, a small burst.
fn offered() -> Vec<u64> {
    let even = |from: u64, gap: u64, n: u64| (0..n).map(move |i| from + i * gap);
    even(9_000, 80, 12)
        .chain(even(10_000, 500, 18))
        .chain(even(22_100, 2_000, 5))
        .chain(even(32_050, 330, 45))
        .chain(even(54_300, 60, 8))
        .collect()
}

pub(crate) async fn play(scene: &Scene) -> Result<Played, Box<dyn Error>> {
    let clock = ManualClock::at(scene.start);
    let store = MemoryStore::new(Capacity::default(), Arc::new(clock.clone()));
    let limits = Limits::new(vec![Policy::new(POLICY, vec![scene.rule.clone()])?], Arc::new(store))?;
    let subject = Subject::new("anyone")?;
    let charge = [Charge::new(POLICY, subject.clone())];

    let mut played = Played { offered: offered(), admitted: Vec::new(), ended: Vec::new() };
    let mut open: Vec<(u64, ReservationId)> = Vec::new();
    let mut blocked = false;
    for &at in &played.offered {
        if let Act::Blocked { from, until } = scene.act
            && !blocked
            && at >= from * 1_000
        {
            blocked = true;
            let zero = BTreeMap::from([("block".to_owned(), 0)]);
            clock.set(time(scene, from * 1_000));
            limits.override_limits(POLICY, subject.clone(), None, &zero, time(scene, until * 1_000)).await?;
        }
        while open.first().is_some_and(|(due, _)| *due <= at) {
            let (due, id) = open.remove(0);
            clock.set(time(scene, due));
            limits.settle(&id, &Cost::default()).await?;
            played.ended.push(due);
        }
        clock.set(time(scene, at));
        match scene.act {
            Act::Check | Act::Blocked { .. } => {
                let decision = limits.check(&charge).await?;
                if decision.allowed {
                    let starts = decision.wait_until().map_or(at, |turn| place(scene, turn));
                    played.admitted.push(starts);
                }
            }
            Act::Hold { steps } => {
                if let Reserved::Admitted(admission) = limits.reserve(&charge, &ReserveOptions::default()).await? {
                    played.admitted.push(at);
                    open.push((at + steps * 1_000, admission.into_id()));
                }
            }
        }
    }
    played.ended.extend(open.iter().map(|(due, _)| *due));
    Ok(played)
}

fn time(scene: &Scene, thousandths: u64) -> Timestamp {
    scene.start + scene.step * u32::try_from(thousandths).unwrap_or(u32::MAX) / 1_000
}

fn place(scene: &Scene, at: Timestamp) -> u64 {
    let thousandth: Duration = scene.step / 1_000;
    u64::try_from(at.since(scene.start).as_micros() / thousandth.as_micros()).unwrap_or(u64::MAX)
}
