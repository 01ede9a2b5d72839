//! What is admitted at most, in schedules that a seed draws: some of the instances lose the store and answers of it, the store
//! loses what it knew, and instances are killed with what they have not told.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::limits::OnLeaseExpiry;

const INSTANCES: u64 = 3;
const SUBJECTS: [&str; 3] = ["a", "b", "c"];

/// All rules that count, in one window that outlives every schedule.
fn lasting(limit: u64) -> Vec<Rule> {
    let window = 30 * DAY;
    vec![
        Rule::fixed_window(limit, window).unwrap(),
        Rule::sliding_log(limit, window).unwrap(),
        Rule::sliding_counter(limit, window, None).unwrap(),
        Rule::interpolated(limit, window).unwrap(),
        Rule::token_bucket(limit, window, None).unwrap(),
        Rule::concurrency(limit).unwrap(),
    ]
}

/// What callers of one subject have, by the word of the answers.
#[derive(Debug, Default)]
struct Subjected {
    spent: u64,
    open: Vec<(ReservationId, u64)>,
}

impl Subjected {
    fn has(&self) -> u64 {
        self.spent + self.open.iter().map(|(_, n)| n).sum::<u64>()
    }
}

/// L, and a share of it for each instance that was ever without the store; for each time that the store has lost what it knew one
/// more L, and for each instance that was killed its share, which nobody was told of.
fn bound(limit: u64, without: u64, losses: u64, kills: u64) -> u64 {
    let share = limit.div_ceil(INSTANCES);
    limit + without * share + losses * limit + kills * share
}

/// Returns how much of the limit somebody had at the most.
async fn schedule(seed: u64) -> f64 {
    let mut draw = StdRng::seed_from_u64(seed);
    let limit = draw.random_range(9..200);
    let rules = lasting(limit);
    let rule = rules[draw.random_range(0..rules.len())].clone();
    let is_held = rule.algorithm() == "concurrency";
    let policy = Policy::new("p", vec![rule]).unwrap().with_lease(DAY, OnLeaseExpiry::Release).unwrap();
    // Who may lose it, from nobody to everybody; and whether more happens than that.
    let (without, may_lose, may_kill) = (seed % 4, seed / 4 % 2 == 1, seed / 8 % 2 == 1);
    let (mut world, mut losses, mut kills) = (World::of(INSTANCES, &policy), 0, 0);
    let mut subjects: [Subjected; 3] = Default::default();
    let mut highest = 0;
    for _ in 0..draw.random_range(50..400) {
        let (instance, whose, n) = (draw.random_range(0..3), draw.random_range(0..3), draw.random_range(1..4));
        let subjected = &mut subjects[whose];
        let charge = [Charge::new("p", Subject::new(SUBJECTS[whose]).unwrap()).costing(Cost::requests(n).unwrap())];
        let is_sure = instance as u64 >= without;
        match draw.random_range(0..100) {
            0..14 if is_sure => {}
            0..6 => world.cut(instance, draw.random()),
            6..10 => world.settle(instance, draw.random()),
            10..14 => world.links[instance].loses_answer.store(true, Ordering::Relaxed),
            14..20 => world.fallbacks[instance].write_back().await,
            20..22 => world.clock.advance(Duration::from_millis(draw.random_range(1..1_000))),
            22..23 if may_lose => {
                world.server.store.reset_all().await.unwrap();
                world.server.life.fetch_add(1, Ordering::Relaxed);
                losses += 1;
            }
            23..24 if may_kill => {
                world.replace(instance, INSTANCES, &policy);
                kills += 1;
            }
            22..24 => {}
            24..60 if !is_held => {
                let is_admitted = world.limits[instance].check(&charge).await.unwrap().allowed;
                subjected.spent += if is_admitted { n } else { 0 };
            }
            24..80 => {
                let options = ReserveOptions { lease: Some(DAY), idempotency_key: None };
                if let Reserved::Admitted(admission) = world.limits[instance].reserve(&charge, &options).await.unwrap()
                {
                    subjected.open.push((admission.into_id(), n));
                }
            }
            _ if subjected.open.is_empty() => {}
            _ => {
                let (id, n) = subjected.open.swap_remove(draw.random_range(0..subjected.open.len()));
                let settled = draw.random_range(0..=n);
                // Whoever has lost it, or is gone with it.
                let ended = world.limits[instance].settle(&id, &Cost::requests(settled).unwrap()).await;
                assert!(ended.is_ok_and(|ended| ended.ending == Ending::Settled));
                subjected.spent += if is_held { 0 } else { settled };
            }
        }
        let (has, most) = (subjects[whose].has(), bound(limit, without, losses, kills));
        assert!(has <= most, "{has} of {limit}, {without} without the store: {most} at the most");
        highest = highest.max(has);
    }
    highest as f64 / limit as f64
}

#[tokio::test]
async fn no_schedule_admits_more_than_the_bound() {
    let mut highest = [0.0_f64; 4];
    for seed in 0..800 {
        let run = tokio::spawn(schedule(seed)).await;
        let share = run.unwrap_or_else(|_| panic!("seed {seed}"));
        if seed / 4 % 4 == 0 {
            let without = &mut highest[(seed % 4) as usize];
            *without = without.max(share);
        }
    }
    // Where nothing else happens limits are reached, and shares beyond them: the bound is no idle one.
    assert!(highest[0] == 1.0 && highest[1..].iter().all(|share| *share > 1.0), "{highest:?}");
}
