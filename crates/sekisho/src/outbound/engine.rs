//! One reservation per request that goes out.

use std::sync::Arc;

use arc_swap::ArcSwap;
use quick_cache::sync::Cache;
use serde::{Serialize, Serializer};
use smallvec::{SmallVec, smallvec};
use url::Url;

use super::cooldown;
use super::domains::{Domains, Governed};
use super::meters::Meters;
use super::outcome::{Kind, Outcome};
use super::permit::Permit;
use super::seed::{self, DomainDailyBudget};
use super::site::Site;
use super::tell::Tell;
use super::terms::{CONCURRENCY, COOLDOWN, INCIDENTS, INTERVAL, PAGES, REQUESTS, RULES, UNLIMITED};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::key::Subject;
use crate::limits::fallback::end_as_backed;
use crate::limits::policy::Amounts;
use crate::limits::reservation::{Backing, Tag};
use crate::limits::rule::EXACT;
use crate::limits::store::{Adoption, Demand, Demands, End, EndHow, Operation, Take, TakeKind, Taken, Target, Targets};
use crate::limits::{LimitStore, Mode, OnFailure, RuleOutcome};

/// So many domains are remembered by name, to be shown: the stores know them by their keys only.
const RECENT: usize = 10_000;

/// Decides which requests go out, and when. Cheap to clone; clones are the same.
#[derive(Debug, Clone)]
pub struct Outbound {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    domains: ArcSwap<Domains>,
    store: Arc<dyn LimitStore>,
    recent: Cache<Arc<str>, ()>,
    meters: Meters,
    tell: Tell,
}

/// The answer to an acquire.
#[derive(Debug, Clone)]
pub enum Acquired {
    Admitted(Admitted),
    Denied(Denied),
}

#[derive(Debug, Clone)]
pub struct Admitted {
    pub permit: Permit,
    /// To be sent only then; now if there is none.
    pub wait_until: Option<Timestamp>,
    /// Left after this request, of the tightest budget; [`UNLIMITED`] where none is known.
    pub requests_remaining: u64,
    pub pages_remaining: u64,
    /// Admitted all the same, by `mode: observe`: this is why it would not have been.
    pub observed: Option<Reason>,
    /// The instant it was decided for, on the store's clock.
    pub at: Timestamp,
    /// The store did not decide: what this process knew did, or `on_failure: open`.
    pub is_degraded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    pub reason: Reason,
    /// The earliest time at which it can be admitted.
    pub retry_at: Option<Timestamp>,
    pub requests_remaining: u64,
    pub pages_remaining: u64,
    pub at: Timestamp,
    /// The store did not decide: what this process knew did.
    pub is_degraded: bool,
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The domain asked to be left alone.
    Cooldown,
    /// The day's requests or pages are spent.
    Budget,
    /// Others are asking it, or its next turn is too far away.
    Busy,
    /// Its robots.txt forbids it.
    Robots,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cooldown => "domain_cooldown",
            Self::Budget => "domain_budget_exceeded",
            Self::Busy => "domain_busy",
            Self::Robots => "robots_disallowed",
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Admitted {
    /// The budget ended with it.
    fn was_the_last(&self, kind: Kind) -> bool {
        let is_spent = self.requests_remaining == 0 || (self.pages_remaining == 0 && kind == Kind::Page);
        is_spent && self.observed.is_none()
    }
}

/// Nobody asks before `until`, said at `at`.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Timestamp,
    at: Timestamp,
}

/// One budget for today.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) used: u64,
    pub(super) remaining: u64,
}

/// What is known of a site.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) requests: Budget,
    pub(super) pages: Budget,
    pub(super) cooldown_until: Option<Timestamp>,
    pub(super) at: Timestamp,
}

impl Figures {
    pub(super) const fn unlimited() -> Self {
        let budget = Budget { used: 0, remaining: UNLIMITED };
        Self { requests: budget, pages: budget, cooldown_until: None, at: Timestamp::from_micros(0) }
    }
}

impl Outbound {
    pub fn new(domains: impl Into<Arc<Domains>>, store: Arc<dyn LimitStore>) -> Self {
        Self {
            inner: Arc::new(Inner {
                domains: ArcSwap::new(domains.into()),
                store,
                recent: Cache::new(RECENT),
                meters: Meters::new(),
                tell: Tell::default(),
            }),
        }
    }

    /// Whether the store decides, and not this process by itself.
    pub async fn is_well(&self) -> bool {
        self.inner.store.ping().await.is_ok() && self.inner.store.is_well()
    }

    /// The terms that hold now.
    pub fn domains(&self) -> Arc<Domains> {
        self.inner.domains.load_full()
    }

    /// Other terms from now on; what was counted stays.
    pub fn replace(&self, domains: impl Into<Arc<Domains>>) {
        self.inner.domains.store(domains.into());
    }

    /// The domains that have a rule, and those that were asked for lately by this process; by name.
    pub fn known(&self) -> Vec<Arc<str>> {
        let domains = self.inner.domains.load();
        let mut names: Vec<Arc<str>> = domains.named().map(Arc::from).collect();
        names.extend(self.inner.recent.iter().map(|(name, ())| name));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Books a request, with the time at which it may leave.
    pub async fn acquire(&self, url: &Url, kind: Kind) -> Result<Acquired, Error> {
        self.reserve(&Site::of(url)?, kind, true).await
    }

    /// Books a request only if it may leave at once.
    pub async fn try_acquire(&self, url: &Url, kind: Kind) -> Result<Acquired, Error> {
        self.reserve(&Site::of(url)?, kind, false).await
    }

    async fn reserve(&self, site: &Site, kind: Kind, is_patient: bool) -> Result<Acquired, Error> {
        let take = self.demanded(site, kind, is_patient);
        if self.inner.recent.get(site.domain()).is_none() {
            self.inner.recent.insert(site.domain().into(), ());
        }
        let taken = self.inner.store.take(&take).await?;
        if taken.allowed {
            self.count_observed(&take, &taken).await?;
        }
        let acquired = acquired(&take, &taken, kind);
        self.inner.meters.acquired(&acquired);
        if let Acquired::Admitted(admitted) = &acquired
            && admitted.was_the_last(kind)
        {
            let left = (admitted.requests_remaining, admitted.pages_remaining);
            self.inner.tell.spent(site.domain(), left, admitted.at);
        }
        Ok(acquired)
    }

    /// Apart, so that nobody holds on to the terms while the store is asked.
    fn demanded(&self, site: &Site, kind: Kind, is_patient: bool) -> Take {
        let domains = self.inner.domains.load();
        let lease = crate::clock::micros(domains.settings().lease);
        let mut demands = Demands::new();
        for (name, governed) in domains.charged(site) {
            let policy = if is_patient { &governed.patient } else { &governed.prompt };
            demands.push(Demand { target: target(name, policy), amounts: reserved(kind) });
        }
        let kind = TakeKind::Reserve { tag: Tag::random(), lease, repeated: false };
        Take::new(demands, kind)
    }

    /// The engine holds nothing of what only `mode: observe` let through, but it is sent all the same, and must show.
    async fn count_observed(&self, take: &Take, taken: &Taken) -> Result<(), Error> {
        for (demand, rules) in take.demands.iter().zip(&taken.outcomes) {
            if !is_within(rules) {
                let spent = cost(demand.amounts[REQUESTS], demand.amounts[PAGES], 0, 0);
                self.inner.store.operate(&demand.target, &Operation::Charge(spent.to_vec())).await?;
            }
        }
        Ok(())
    }

    /// Says what became of a request. Repeating it changes nothing.
    ///
    /// A domain that asks for a pause gets it before the request ends, so that nobody slips in between.
    pub async fn settle(&self, permit: &Permit, outcome: Outcome) -> Result<(), Error> {
        let (end, is_observed) = self.ended(permit, outcome);
        // The last one is the domain itself.
        if let Some(domain) = end.targets.last() {
            let pause = match outcome.not_before() {
                Some(until) => self.pause_for(permit, domain, 0, until).await,
                None if outcome.is_incident() => self.cool_down(permit, domain).await,
                None => Ok(None),
            };
            let pause = match pause {
                // Then nobody is kept from asking, and a pause that cannot be kept either is no reason to leave it open.
                Err(Error::Unavailable { .. }) if self.is_open_on_failure() => None,
                pause => pause?,
            };
            // Others only say how fast they want to be asked.
            if let Some(Pause { until, at }) = pause.filter(|_| outcome.says_no()) {
                self.inner.meters.paused();
                self.inner.tell.paused(domain.subject.as_str(), until, at);
            }
        }
        let answer = match self.inner.store.end(&end).await {
            // Nothing was held of it, and it is counted; or it was given out here, and has ended before.
            Err(Error::UnknownReservation) if is_observed || !permit.is_shared => return Ok(()),
            answer => answer,
        };
        end_as_backed(&end, answer).map(drop)
    }

    /// Ends a request that asks for no pause of its domain, without waiting: for what is dropped.
    pub fn settle_later(&self, permit: &Permit, outcome: Outcome) {
        self.inner.store.end_later(self.ended(permit, outcome).0);
    }

    /// How a request ends, and whether its terms only observe.
    fn ended(&self, permit: &Permit, outcome: Outcome) -> (End, bool) {
        let domains = self.inner.domains.load();
        let (mut targets, mut amounts, mut is_observed) = (Targets::new(), SmallVec::new(), true);
        for subject in &permit.charged {
            let governed = domains.of_subject(subject);
            targets.push(Target { policy: Arc::clone(&governed.patient), subject: subject.clone(), endpoint: None });
            amounts.push(outcome.amounts(&governed.terms, &reserved(permit.kind)));
            is_observed &= governed.terms.observe;
        }
        let how = if outcome == Outcome::NotSent { EndHow::Release } else { EndHow::Settle(amounts) };
        let Permit { tag, expires, is_shared, backing, .. } = *permit;
        (End { tag, expires, is_shared, backing, targets, how }, is_observed)
    }

    /// One more incident, unless the domain is left alone already: all that was in flight then is one incident.
    async fn cool_down(&self, permit: &Permit, domain: &Target) -> Result<Option<Pause>, Error> {
        let demand = Demand { target: domain.clone(), amounts: cost(0, 0, 0, 0) };
        let taken =
            self.inner.store.take(&Take { demands: smallvec![demand], kind: TakeKind::Peek, entropy: 0 }).await?;
        let known = taken.outcomes.first().filter(|rules| !is_denied(rules, COOLDOWN));
        let Some(incidents) = known.and_then(|rules| rules.get(INCIDENTS)) else { return Ok(None) };
        let until = taken.at + cooldown::after(incidents.used + 1, rand::random());
        self.pause_for(permit, domain, 1, until).await
    }

    /// A pause that a request is answered with, and the incident that it is: once, however often that is told.
    async fn pause_for(
        &self,
        permit: &Permit,
        domain: &Target,
        incidents: u64,
        until: Timestamp,
    ) -> Result<Option<Pause>, Error> {
        let adoption = Adoption {
            tag: permit.tag.beside(),
            at_least: cost(0, 0, 0, 0),
            spent: cost(0, 0, 0, incidents),
            holds: Vec::new(),
            blocked_until: until.min(Timestamp::from_micros(EXACT)),
        };
        let taken = self.inner.store.operate(domain, &Operation::Adopt(adoption)).await?;
        // Nobody asked for a turn here, so that nobody is denied: when it opens again is said all the same.
        let until = taken.outcomes.first().and_then(|rules| Some(rules.get(COOLDOWN)?.reset_at));
        Ok(until.filter(|until| *until > taken.at).map(|until| Pause { until, at: taken.at }))
    }

    /// The time by the clock that decides over this request: that of the store, which need not be ours.
    pub async fn time(&self, permit: &Permit) -> Result<Timestamp, Error> {
        let (End { targets, .. }, _) = self.ended(permit, Outcome::NotSent);
        let demands = targets.into_iter().map(|target| Demand { target, amounts: cost(0, 0, 0, 0) }).collect();
        let take = Take { demands, kind: TakeKind::Peek, entropy: 0 };
        self.inner.store.take(&take).await.map(|taken| taken.at)
    }

    /// Nobody of the fleet asks this domain before then; a longer pause stays.
    pub async fn pause(&self, site: &Site, until: Timestamp) -> Result<(), Error> {
        let domains = self.inner.domains.load();
        let charged = domains.charged(site);
        let (name, governed) = charged[charged.len() - 1];
        let until = until.min(Timestamp::from_micros(EXACT));
        self.inner.store.operate(&target(name, &governed.patient), &Operation::Block { until }).await.map(drop)
    }

    /// Lifts a cooldown; what was spent stays spent.
    pub async fn lift(&self, site: &Site) -> Result<DomainDailyBudget, Error> {
        let domains = self.inner.domains.load_full();
        for (name, governed) in domains.charged(site) {
            let mut given = vec![0; RULES];
            given[COOLDOWN] = 1;
            self.inner.store.operate(&target(name, &governed.patient), &Operation::Grant(given)).await?;
        }
        self.budget(site).await
    }

    pub(super) async fn record(&self, site: &Site, is_page: bool) -> Result<(), Error> {
        let domains = self.inner.domains.load_full();
        for (name, governed) in domains.charged(site) {
            let spent = Operation::Charge(cost(1, u64::from(is_page), 0, 0).to_vec());
            self.inner.store.operate(&target(name, &governed.patient), &spent).await?;
        }
        Ok(())
    }

    /// What a domain was asked today, and may be; for a host with a rule of its own, by that rule.
    pub async fn budget(&self, site: &Site) -> Result<DomainDailyBudget, Error> {
        let domains = self.inner.domains.load_full();
        let (name, governed) = domains.charged(site)[0];
        let Figures { requests, pages, cooldown_until, at } = self.figures(site).await?;
        Ok(DomainDailyBudget {
            domain: name.to_owned(),
            requests_today: requests.used,
            pages_today: pages.used,
            max_requests_per_day: governed.terms.max_requests_per_day,
            max_pages_per_day: governed.terms.max_pages_per_day,
            date: date(governed, at),
            requests_remaining: requests.remaining,
            pages_remaining: pages.remaining,
            cooldown_until,
        })
    }

    pub(super) async fn figures(&self, site: &Site) -> Result<Figures, Error> {
        let domains = self.inner.domains.load_full();
        let mut take = Take { demands: smallvec![], kind: TakeKind::Peek, entropy: 0 };
        for (name, governed) in domains.charged(site) {
            let target = target(name, &governed.patient);
            take.demands.push(Demand { target, amounts: cost(0, 0, 0, 0) });
        }
        let taken = self.inner.store.take(&take).await?;
        let cooldowns = taken.outcomes.iter().filter_map(|rules| rules.get(COOLDOWN)?.denied_until);
        Ok(Figures {
            requests: budget_of(&taken, REQUESTS),
            pages: budget_of(&taken, PAGES),
            cooldown_until: cooldowns.max(),
            at: taken.at,
        })
    }

    pub(super) fn is_open_on_failure(&self) -> bool {
        self.inner.domains.load().settings().on_failure == OnFailure::Open
    }
}

/// `name` is a site's or its domain's, which hold nothing that a key may not.
fn target(name: &str, policy: &Arc<crate::limits::Policy>) -> Target {
    Target { policy: Arc::clone(policy), subject: Subject::plain(name), endpoint: None }
}

fn cost(requests: u64, pages: u64, turns: u64, incidents: u64) -> Amounts {
    let mut amounts = Amounts::from_elem(0, RULES);
    (amounts[REQUESTS], amounts[PAGES], amounts[INCIDENTS]) = (requests, pages, incidents);
    (amounts[COOLDOWN], amounts[INTERVAL], amounts[CONCURRENCY]) = (turns, turns, turns);
    amounts
}

/// What a request of this kind reserves.
pub(super) fn reserved(kind: Kind) -> Amounts {
    cost(1, u64::from(kind == Kind::Page), 1, 0)
}

fn acquired(take: &Take, taken: &Taken, kind: Kind) -> Acquired {
    let (requests, pages) = (budget_of(taken, REQUESTS).remaining, budget_of(taken, PAGES).remaining);
    let rules = || taken.outcomes.iter().flatten();
    if !taken.allowed {
        let retry_at = rules().filter_map(|rule| rule.denied_until).max();
        let reason = denied_by(taken).unwrap_or(Reason::Busy);
        return Acquired::Denied(Denied {
            reason,
            retry_at,
            requests_remaining: requests,
            pages_remaining: pages,
            at: taken.at,
            is_degraded: taken.degraded.is_some(),
        });
    }
    let TakeKind::Reserve { tag, lease, .. } = take.kind else { unreachable!("only reservations are acquired") };
    let charged = take.demands.iter().map(|demand| demand.target.subject.clone()).collect();
    let expires = taken.expires_at.map_or(taken.at.as_micros() + lease, Timestamp::as_micros);
    let is_degraded = taken.degraded.is_some();
    Acquired::Admitted(Admitted {
        permit: Permit { tag, expires, kind, charged, backing: Backing::of(taken.degraded), is_shared: false },
        wait_until: wait_until(take, taken, false),
        requests_remaining: requests,
        pages_remaining: pages,
        observed: denied_by(taken).or_else(|| wait_until(take, taken, true).map(|_| Reason::Busy)),
        at: taken.at,
        is_degraded,
    })
}

/// When the turn comes of what is charged under rules that hold, or under those that only observe.
fn wait_until(take: &Take, taken: &Taken, observed: bool) -> Option<Timestamp> {
    let is_observed = |demand: &Demand| demand.target.policy.mode() == Mode::Shadow;
    let charged = take.demands.iter().zip(&taken.outcomes).filter(|(demand, _)| is_observed(demand) == observed);
    charged.flat_map(|(_, rules)| rules).filter_map(|rule| rule.wait_until).max()
}

/// A cooldown is said before a spent budget, and that before a turn: each is the longer story.
fn denied_by(taken: &Taken) -> Option<Reason> {
    let denies = |at: &[usize]| taken.outcomes.iter().any(|rules| at.iter().any(|i| is_denied(rules, *i)));
    [
        (Reason::Cooldown, &[COOLDOWN][..]),
        (Reason::Budget, &[REQUESTS, PAGES]),
        (Reason::Busy, &[INTERVAL, CONCURRENCY]),
    ]
    .into_iter()
    .find(|(_, rules)| denies(rules))
    .map(|(reason, _)| reason)
}

fn is_denied(rules: &[RuleOutcome], i: usize) -> bool {
    rules.get(i).is_some_and(|rule| rule.denied_until.is_some())
}

fn is_within(rules: &[RuleOutcome]) -> bool {
    rules.iter().all(|rule| rule.denied_until.is_none())
}

/// What is used by the most specific rule, and what is left of the tightest.
fn budget_of(taken: &Taken, rule: usize) -> Budget {
    let of = |rules: &Vec<RuleOutcome>| rules.get(rule).map(|rule| (rule.used + rule.held, rule.remaining));
    let used = taken.outcomes.first().and_then(of).map_or(0, |(used, _)| used);
    let remaining = taken.outcomes.iter().filter_map(of).map(|(_, remaining)| remaining).min();
    Budget { used, remaining: seed::remaining(remaining.unwrap_or(UNLIMITED)) }
}

/// The day that holds `at`, in the domain's zone.
fn date(governed: &Governed, at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    instant.to_zoned(governed.terms.zone.clone()).date().to_string()
}
