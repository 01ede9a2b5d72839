//! Schedules that a seed draws, and what callers were told, held against the store in the end.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::limits::OnLeaseExpiry;

/// What callers were told.
#[derive(Debug, Default)]
struct Ledger {
    spent: u64,
    /// By callers who were told no after the store may have counted it.
    doubtful: u64,
    /// Of what was spent, that since the store last lost all it knew. It may know of more: instances bring back what they saw.
    since: u64,
    open: Vec<Open>,
    /// Those that instances made by themselves, and that others have ended.
    ended: Vec<Open>,
}

impl Ledger {
    fn spend(&mut self, n: u64) {
        self.spent += n;
        self.since += n;
    }

    fn lose(&mut self) {
        self.since = 0;
        self.open.iter_mut().chain(&mut self.ended).for_each(|open| open.is_lost = true);
    }
}

#[derive(Debug)]
struct Open {
    id: ReservationId,
    n: u64,
    until: Timestamp,
    /// The store has lost it, unless it had not been told of it yet; or how it ended.
    is_lost: bool,
}

/// Leases of a day outlive every schedule; `lease` may run out in the middle of one, and then releases. If the store `may_lose` all it
/// knows, no answer is lost besides: what was counted there, brought back by who saw it, and told again would count twice.
async fn schedule(seed: u64, lease: Duration, may_lose: bool) {
    let mut draw = StdRng::seed_from_u64(seed);
    let rule = Rule::fixed_window(draw.random_range(5..200), 30 * DAY).unwrap();
    let policy = Policy::new("p", vec![rule]).unwrap().with_lease(lease, OnLeaseExpiry::Release).unwrap();
    let world = World::of(3, &policy);
    let mut ledger = Ledger::default();
    for _ in 0..draw.random_range(20..200) {
        let (instance, n) = (draw.random_range(0..3), draw.random_range(1..4));
        match draw.random_range(0..100) {
            0..4 => world.cut_all(true),
            4..8 => world.cut_all(false),
            8..11 => world.cut(instance, draw.random()),
            11..14 => world.settle(instance, draw.random()),
            14..16 if may_lose => {
                world.server.store.reset_all().await.unwrap();
                world.server.life.fetch_add(1, Ordering::Relaxed);
                ledger.lose();
            }
            14..18 if may_lose => {}
            14..18 => world.links[instance].loses_answer.store(true, Ordering::Relaxed),
            18..22 => world.fallbacks[instance].write_back().await,
            22..26 => world.clock.advance(Duration::from_millis(draw.random_range(1..5_000))),
            26..60 => {
                let in_doubt = world.links[instance].loses_answer.load(Ordering::Relaxed);
                let is_admitted = world.check(instance, n).await;
                ledger.spend(if is_admitted { n } else { 0 });
                // A check has no id: if its answer is lost, it may be counted there and here.
                ledger.doubtful += if in_doubt { n } else { 0 };
            }
            60..80 => {
                let until = world.now() + lease;
                let reserved = world.reserve_for(instance, n, lease).await;
                ledger.open.extend(reserved.map(|id| Open { id, n, until, is_lost: false }));
            }
            _ if ledger.open.is_empty() => {}
            _ => {
                let open = ledger.open.swap_remove(draw.random_range(0..ledger.open.len()));
                let (id, limits, settles) = (&open.id, &world.limits[instance], draw.random());
                let ended = match settles {
                    true => limits.settle(id, &Cost::requests(n).unwrap()).await,
                    false => limits.release(id).await,
                };
                match ended {
                    Ok(ended) => ledger.spend(if settles && ended.ending == Ending::Settled { n } else { 0 }),
                    Err(Error::UnknownReservation) => assert!(open.is_lost && open.until <= world.now(), "{open:?}"),
                    Err(error) => panic!("{error}"),
                }
                if open.id.backing == Backing::Instance {
                    ledger.ended.push(Open { is_lost: false, ..open });
                }
            }
        }
    }
    world.recover().await;
    let now = world.now();
    ledger.open.retain(|open| open.until > now);
    let held: u64 = ledger.open.iter().map(|open| open.n).sum();
    let lost =
        |all: &[Open]| -> u64 { all.iter().filter(|open| open.is_lost && open.until > now).map(|open| open.n).sum() };
    // Whoever made one and tells the store of it only after that has lost how it ended has it held until its lease is over.
    let (lost, again) = (lost(&ledger.open), lost(&ledger.ended));
    let figures = world.figures().await;
    assert!((held - lost..=held + again).contains(&figures.held), "{}: {ledger:?}", figures.held);
    let least = if may_lose { ledger.since } else { ledger.spent };
    let expected = least..=ledger.spent + ledger.doubtful;
    assert!(expected.contains(&figures.used), "{} is not in {expected:?}: {ledger:?}", figures.used);
    for open in std::mem::take(&mut ledger.open) {
        world.limits[0].release(&open.id).await.unwrap();
    }
    let after = world.figures().await;
    assert!(after.used == figures.used && after.held <= again, "a release costs nothing: {after:?}");
}

#[tokio::test]
async fn the_books_agree_after_any_schedule() {
    for seed in 0..600 {
        let run = tokio::spawn(schedule(seed, DAY, false)).await;
        assert!(run.is_ok(), "seed {seed}");
    }
}

#[tokio::test]
async fn the_books_agree_though_leases_run_out_meanwhile() {
    for seed in 0..600 {
        let run = tokio::spawn(schedule(seed, Duration::from_secs(10), false)).await;
        assert!(run.is_ok(), "seed {seed}");
    }
}

#[tokio::test]
async fn no_end_is_missing_or_counted_twice_though_the_store_loses_what_it_knew() {
    for seed in 0..600 {
        for lease in [DAY, Duration::from_secs(10)] {
            let run = tokio::spawn(schedule(seed, lease, true)).await;
            assert!(run.is_ok(), "seed {seed}, leases of {lease:?}");
        }
    }
}

#[tokio::test]
async fn what_a_caller_was_told_is_settled_counts_though_its_lease_is_over() {
    let rule = Rule::fixed_window(90, DAY).unwrap();
    for (on_expiry, n) in [(OnLeaseExpiry::Release, 2), (OnLeaseExpiry::Settle, 7)] {
        let lease = Duration::from_secs(10);
        let policy = Policy::new("p", vec![rule.clone()]).unwrap().with_lease(lease, on_expiry).unwrap();
        let world = World::of(3, &policy);
        let id = world.reserve_for(0, 3, lease).await.unwrap();
        world.cut_all(true);
        let settled = world.limits[0].settle(&id, &Cost::requests(n).unwrap()).await.unwrap();
        assert_eq!(settled.ending, Ending::Settled);
        world.clock.advance(2 * lease);
        // The answer to the late charge is lost as well: it is told again, and counts once.
        world.cut_all(false);
        world.links[0].loses_answer.store(true, Ordering::Relaxed);
        world.fallbacks[0].write_back().await;
        world.recover().await;
        assert_eq!(world.figures().await.used, n, "{on_expiry:?}");
    }
}
