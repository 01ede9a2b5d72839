//! Waiting for a turn, and giving it back.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use url::Url;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::outbound::{Acquired, Admitted, Denied, Kind, Outbound, Outcome, Permit, Reason};

/// Nobody says when a busy domain is free, so it is asked again, ever more seldom.
const POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(1);
/// Not all who waited for the same moment come in it.
const LATER: Duration = Duration::from_millis(250);

/// How long a fetch still waits for its turns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) left: Duration,
    /// False for the first turn of whoever does not want to wait; what has begun waits.
    pub(super) waits: bool,
}

/// The right to make one request now. It settles when it is dropped, so that a caller who goes away leaves no turn taken.
#[derive(Debug)]
pub(super) struct Ticket {
    outbound: Outbound,
    permit: Option<Permit>,
    is_sent: bool,
    /// On the store's clock, which is the one that counts.
    at: Timestamp,
    since: Instant,
}

/// A turn, as soon as there is one and as long as there is patience.
pub(super) async fn turn(
    outbound: &Outbound,
    url: &Url,
    kind: Kind,
    patience: &mut Patience,
) -> Result<Result<Ticket, Denied>, Error> {
    let mut poll = POLL;
    loop {
        let acquired = match patience.waits {
            true => outbound.acquire(url, kind).await?,
            false => outbound.try_acquire(url, kind).await?,
        };
        let denied = match acquired {
            Acquired::Admitted(admitted) => match await_turn(outbound, admitted, patience).await? {
                Ok(ticket) => {
                    patience.waits = true;
                    return Ok(Ok(ticket));
                }
                Err(denied) => denied,
            },
            Acquired::Denied(denied) => denied,
        };
        let wait = match (denied.reason, denied.retry_at) {
            (Reason::Busy, _) => {
                let wait = jittered(poll);
                poll = LONGEST_POLL.min(poll * 2);
                wait
            }
            (_, Some(retry_at)) => retry_at.since(denied.at) + LATER.mul_f64(rand::random()),
            (_, None) => return Ok(Err(denied)),
        };
        if !patience.waits || wait > patience.left {
            return Ok(Err(denied));
        }
        sleep(wait).await;
        patience.left -= wait;
    }
}

/// The turn is booked; whoever cannot wait for it gives it back.
async fn await_turn(
    outbound: &Outbound,
    admitted: Admitted,
    patience: &mut Patience,
) -> Result<Result<Ticket, Denied>, Error> {
    let Admitted { permit, wait_until, at, requests_remaining, pages_remaining, is_degraded, .. } = admitted;
    let ticket = Ticket { outbound: outbound.clone(), permit: Some(permit), is_sent: false, at, since: Instant::now() };
    let wait = wait_until.map_or(Duration::ZERO, |until| until.since(at));
    if wait > patience.left {
        ticket.settle(Outcome::NotSent).await;
        let (reason, retry_at) = (Reason::Busy, wait_until);
        let denied = Denied { reason, retry_at, requests_remaining, pages_remaining, at, is_degraded };
        patience.left = Duration::ZERO;
        return Ok(Err(denied));
    }
    if !wait.is_zero() {
        sleep(wait).await;
        patience.left -= wait;
    }
    Ok(Ok(ticket))
}

impl Ticket {
    /// On the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.at + self.since.elapsed()
    }

    /// From here on the server may see it, whatever becomes of us.
    pub(super) fn sent(&mut self) {
        self.is_sent = true;
    }

    /// A store that does not take it is not the caller's trouble: the lease ends what is not settled.
    pub(super) async fn settle(mut self, outcome: Outcome) {
        if let Some(permit) = &self.permit
            && let Err(error) = self.outbound.settle(permit, outcome).await
        {
            tracing::warn!(%error, "a request could not be settled; it stays charged, and its turn ends with its lease");
        }
        self.permit = None;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (Some(permit), Ok(runtime)) = (self.permit.take(), Handle::try_current()) else { return };
        let outcome = if self.is_sent { Outcome::NoAnswer } else { Outcome::NotSent };
        let outbound = self.outbound.clone();
        runtime.spawn(async move {
            if let Err(error) = outbound.settle(&permit, outcome).await {
                tracing::warn!(%error, "an abandoned request could not be settled; its turn ends with its lease");
            }
        });
    }
}

/// Between half and one and a half of it.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + rand::random::<f64>())
}
