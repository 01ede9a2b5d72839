//! How often the origin is asked by all workers together: an `interval` rule of the limits engine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::error::Invalid;
use crate::key::Subject;
use crate::limits::{Charge, Degraded, LimitStore, Limits, Policy, Rule};

/// Pauses when nobody says how long to wait: the store does not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// From intervals of this on, requests are as far apart as is said, and not only turns.
const EXACT: Duration = Duration::from_secs(1);
/// A turn of shorter ones is good for so long: a call to Redis lies between it and the request, and whoever has lost their turn
/// asks for another one.
const GOOD_FOR: Duration = Duration::from_millis(250);

/// Gives turns. On a store that the fleet shares, no two workers of it get one closer together than the rule says.
///
/// A request starts somewhere within its turn. So that no two start closer together than the interval, a turn is good for a
/// tenth of it, and turns are further apart by as much.
#[derive(Debug, Clone)]
pub struct Pace {
    limits: Arc<Limits>,
    charge: Charge,
    good_for: Duration,
    /// A worker asks for no turn sooner than this after its last one: the store may have forgotten that.
    apart: Duration,
}

impl Pace {
    /// Requests for the cache of that name start at least `interval` apart, from a second on; of shorter intervals only the
    /// turns do.
    pub fn every(interval: Duration, cache: &str, store: Arc<dyn LimitStore>) -> Result<Self, Invalid> {
        let tenth = interval / 10;
        let (apart, good_for) =
            if interval < EXACT { (interval, GOOD_FOR) } else { (interval.saturating_add(tenth), tenth) };
        let rule = Rule::interval(apart, apart, Duration::ZERO)?;
        let limits = Arc::new(Limits::new(vec![Policy::new(Self::POLICY, vec![rule])?], store)?);
        let charge = Charge::new(Self::POLICY, Subject::new(cache)?);
        Ok(Self { limits, charge, good_for, apart })
    }

    const POLICY: &str = "cache-refresh";

    /// Turns by a policy that is there already, which other work may be charged to as well.
    pub fn by(limits: Arc<Limits>, charge: Charge) -> Self {
        Self { limits, charge, good_for: GOOD_FOR, apart: Duration::ZERO }
    }

    /// Whether a turn that came then is over: a request that started now could come too close before the next one's.
    pub(super) fn is_over(&self, turn: Instant) -> bool {
        turn.elapsed() > self.good_for
    }

    /// Waits for a turn, and says from when it is: the answer may have been on its way for a while. `last` is the last turn in
    /// which this worker made a request.
    pub(super) async fn turn(&self, last: Option<Instant>) -> Instant {
        if let Some(last) = last {
            sleep_until(last + self.apart).await;
        }
        loop {
            let asked_at = Instant::now();
            let pause = match self.limits.check(std::slice::from_ref(&self.charge)).await {
                // Whoever admits without having counted knows nothing of the other workers.
                Ok(decision) if decision.degraded == Some(Degraded::Open) => PAUSE,
                Ok(decision) if decision.allowed => {
                    let wait = decision.wait_until().map_or(Duration::ZERO, |until| until.since(decision.at));
                    sleep(wait).await;
                    return asked_at + wait;
                }
                Ok(decision) => decision.retry_after().unwrap_or(PAUSE),
                Err(error) => {
                    tracing::debug!(%error, "no turn to refresh: the limits' store does not answer");
                    PAUSE
                }
            };
            // A little more, so that not all who wait come back in the same moment.
            sleep(pause + Duration::from_millis(u64::from(rand::random::<u8>()) / 16)).await;
        }
    }
}
