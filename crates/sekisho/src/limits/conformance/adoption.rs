//! What an instance decided by itself while the store was away.

use std::time::Duration;

use super::Harness;
use super::desk::Desk;
use crate::clock::Timestamp;
use crate::key::KeyTemplate;
use crate::limits::decision::{Ending, RuleOutcome};
use crate::limits::policy::Amounts;
use crate::limits::reservation::{Backing, Held, ReservationId, Tag};
use crate::limits::store::{AdoptedHold, Adoption, Operation, Target};
use crate::limits::{Policy, Rule};

const MINUTE: Duration = Duration::from_secs(60);

fn adoption(spent: &[u64]) -> Adoption {
    let none = || spent.iter().map(|_| 0).collect::<Amounts>();
    let blocked_until = Timestamp::default();
    Adoption { tag: Tag::random(), at_least: none(), spent: spent.into(), holds: Vec::new(), blocked_until }
}

impl Desk<'_> {
    fn target(&self) -> Target {
        let policy = std::sync::Arc::clone(self.limits.policies().next().unwrap());
        Target { policy, subject: self.subject.clone(), endpoint: None }
    }

    async fn adopt(&self, adoption: &Adoption) -> Vec<RuleOutcome> {
        let operation = Operation::Adopt(adoption.clone());
        let taken = self.harness.store.operate(&self.target(), &operation).await.unwrap();
        taken.outcomes.into_iter().next().unwrap()
    }

    fn hold(&self, amounts: &[u64], lease: Duration) -> (AdoptedHold, ReservationId) {
        let tag = Tag::random();
        let expires = (self.now() + lease).as_micros();
        let hold = AdoptedHold { tag, expires, amounts: amounts.into() };
        let held = vec![Held::of(&self.target(), amounts.into())];
        (hold, ReservationId { tag, expires, held, backing: Backing::Instance })
    }
}

pub(super) async fn what_was_spent_elsewhere_counts_once(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::sliding_log(10, MINUTE).unwrap());
    desk.check(2).await;
    let other = adoption(&[5]);
    let rule = desk.adopt(&other).await[0];
    assert_eq!((rule.used, rule.held, rule.remaining), (7, 0, 3));
    desk.adopt(&other).await;
    assert_eq!(desk.figures().await, [(7, 0, 3)], "the same once more");
    for _ in 0..12 {
        let id = desk.reserve(1).await;
        desk.release(&id).await;
    }
    desk.adopt(&other).await;
    assert_eq!(desk.figures().await, [(7, 0, 3)], "after many ends");
    desk.adopt(&adoption(&[5])).await;
    let rule = desk.explain().await[0];
    assert_eq!((rule.used, rule.remaining), (12, 0), "another one counts, whatever the limit");
}

pub(super) async fn what_was_lost_is_counted_again_and_no_more(harness: &Harness) {
    let rules = vec![Rule::fixed_window(10, MINUTE).unwrap(), Rule::gcra(10, MINUTE, None).unwrap()];
    let desk = Desk::with_policy(harness, Policy::new("p", rules).unwrap());
    desk.check(3).await;
    let seen = Adoption { at_least: [8, 8].as_slice().into(), ..adoption(&[0, 0]) };
    desk.adopt(&seen).await;
    assert_eq!(desk.figures().await, [(8, 0, 2), (8, 0, 2)]);
    desk.adopt(&Adoption { tag: Tag::random(), ..seen.clone() }).await;
    assert_eq!(desk.figures().await, [(8, 0, 2), (8, 0, 2)], "another instance saw the same");
    desk.adopt(&Adoption { at_least: [5, 5].as_slice().into(), ..adoption(&[1, 1]) }).await;
    assert_eq!(desk.figures().await, [(9, 0, 1), (9, 0, 1)], "what was spent since is on top");
}

pub(super) async fn what_is_held_elsewhere_is_held_here_and_ends_once(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::fixed_window(10, 60 * MINUTE).unwrap());
    let (first, first_id) = desk.hold(&[3], MINUTE);
    let (second, second_id) = desk.hold(&[2], 2 * MINUTE);
    desk.adopt(&Adoption { holds: vec![second, first], ..adoption(&[1]) }).await;
    assert_eq!(desk.figures().await, [(1, 5, 4)]);
    assert_eq!(desk.settle(&second_id, 4).await.ending, Ending::Settled);
    assert_eq!(desk.figures().await, [(5, 3, 2)]);
    desk.advance(MINUTE);
    assert_eq!(desk.figures().await, [(8, 0, 2)], "its lease has run out");
    assert_eq!(desk.release(&first_id).await.ending, Ending::Expired);
    assert_eq!(desk.release(&second_id).await.ending, Ending::Settled);
}

pub(super) async fn what_is_known_already_is_not_held_twice(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::sliding_log(10, 10 * MINUTE).unwrap());
    let (open, ended) = (desk.reserve(2).await, desk.reserve(3).await);
    desk.settle(&ended, 1).await;
    let expires = (desk.now() + MINUTE).as_micros();
    let hold = |id: &ReservationId, n| AdoptedHold { tag: id.tag, expires, amounts: [n].as_slice().into() };
    desk.adopt(&Adoption { holds: vec![hold(&open, 2), hold(&ended, 3)], ..adoption(&[0]) }).await;
    assert_eq!(desk.figures().await, [(1, 2, 7)]);
    desk.release(&open).await;
    assert_eq!(desk.figures().await, [(1, 0, 9)]);
}

pub(super) async fn every_kind_of_rule_adopts(harness: &Harness) {
    let second = Duration::from_secs(1);
    let rules = vec![
        Rule::sliding_counter(10, MINUTE, None).unwrap().named("counter").unwrap(),
        Rule::interpolated(10, MINUTE).unwrap().named("interpolated").unwrap(),
        Rule::leaky_bucket(10, MINUTE, None).unwrap(),
        Rule::concurrency(10).unwrap(),
        Rule::interval(second, second, MINUTE).unwrap(),
        Rule::block(),
    ];
    let desk = Desk::with_policy(harness, Policy::new("p", rules).unwrap());
    let (hold, id) = desk.hold(&[2, 2, 2, 2, 0, 2], MINUTE);
    let until = desk.now() + Duration::from_secs(5);
    let all = Adoption { holds: vec![hold], blocked_until: until, ..adoption(&[3, 3, 3, 3, 1, 3]) };
    let rules = desk.adopt(&all).await;
    let figures: Vec<_> = rules.iter().map(|rule| (rule.used, rule.held, rule.remaining)).collect();
    assert_eq!(figures, [(3, 2, 5), (3, 2, 5), (3, 2, 5), (0, 2, 8), (0, 0, 1), (1, 0, 0)]);
    assert_eq!(rules[4].reset_at, desk.now() + second, "somebody went elsewhere");
    assert_eq!(desk.check(1).await.retry_after(), Some(Duration::from_secs(5)));
    desk.release(&id).await;
    let held: u64 = desk.explain().await.iter().map(|rule| rule.held).sum();
    assert_eq!(held, 0);
}

pub(super) async fn keys_shared_with_older_clients_are_added_to(harness: &Harness) {
    let key = |template: &str| KeyTemplate::parse(&harness.template(template)).unwrap();
    let name = harness.subject();
    let log = Rule::sliding_log(10, MINUTE).unwrap().stored_at(key(&format!("a:{name}:{{subject}}"))).unwrap();
    let day = Rule::fixed_window(10, 1_440 * MINUTE).unwrap();
    let day = day.stored_at(key(&format!("b:{name}:{{subject}}:{{date}}"))).unwrap();
    let desk = Desk::with_policy(harness, Policy::new("p", vec![log, day]).unwrap());
    desk.check(1).await;
    let (hold, id) = desk.hold(&[2, 2], MINUTE);
    desk.adopt(&Adoption { holds: vec![hold], at_least: [3, 3].as_slice().into(), ..adoption(&[1, 1]) }).await;
    assert_eq!(desk.figures().await, [(4, 2, 4), (4, 2, 4)]);
    desk.release(&id).await;
    assert_eq!(desk.figures().await, [(4, 0, 6), (4, 0, 6)]);
}
