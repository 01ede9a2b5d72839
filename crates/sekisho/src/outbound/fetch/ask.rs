//! One request, whole: where it leads is checked, its domain is charged, it is sent, its answer is read, and it is settled.

use std::path::Path;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use url::Url;

use super::answer::{Body, Reason};
use super::body::{self, Bounds};
use super::client::{Client, Missed};
use super::redirect;
use super::signals;
use super::turn::{Patience, Ticket, turn};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::outbound::{Denied, Kind, Outbound, Outcome};

/// A name that does not resolve within this does not count as one.
const RESOLVE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub(super) url: &'a Url,
    pub(super) kind: Kind,
    pub(super) headers: HeaderMap,
    /// Where a good body goes; into memory without one.
    pub(super) file: Option<&'a Path>,
    pub(super) max_bytes: u64,
    /// Whether what is longer is cut.
    pub(super) cuts: bool,
    pub(super) idle: Duration,
    /// What robots.txt wants between two requests.
    pub(super) delay: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum Heard {
    Answer(Answer),
    Denied(Denied),
    Missed(Missed),
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Why the body is not whole.
    pub(super) trouble: Option<Missed>,
}

/// What a fetch has left of its two kinds of time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    /// For requests on their way.
    pub(super) left: Duration,
    pub(super) patience: Patience,
}

pub(super) async fn ask(client: &Client, outbound: &Outbound, ask: &Ask<'_>, time: &mut Time) -> Result<Heard, Error> {
    if time.left.is_zero() {
        return Ok(Heard::Missed(Missed::unsent(Reason::Timeout, "the time for the whole fetch is over")));
    }
    // What leads nowhere is charged to nobody.
    let begin = Instant::now();
    let checked = client.check(ask.url, begin + RESOLVE.min(time.left)).await;
    time.left = time.left.saturating_sub(begin.elapsed());
    if let Err(missed) = checked {
        return Ok(Heard::Missed(missed));
    }
    let ticket = match turn(outbound, ask.url, ask.kind, &mut time.patience).await? {
        Ok(ticket) => ticket,
        Err(denied) => return Ok(Heard::Denied(denied)),
    };
    let begin = Instant::now();
    let heard = exchange(client, ask, ticket, begin + time.left).await;
    time.left = time.left.saturating_sub(begin.elapsed());
    Ok(heard)
}

async fn exchange(client: &Client, ask: &Ask<'_>, mut ticket: Ticket, until: Instant) -> Heard {
    ticket.sent();
    let (head, body) = match client.send(ask.url, ask.headers.clone(), until).await {
        Ok(answer) => answer.into_parts(),
        Err(missed) => {
            ticket.settle(if missed.was_sent { Outcome::NoAnswer } else { Outcome::NotSent }).await;
            return Heard::Missed(missed);
        }
    };
    let (status, now) = (head.status.as_u16(), ticket.now());
    let is_good = head.status.is_success();
    let is_wanted = is_good || ask.file.is_none() && redirect::next(ask.url, status, &head.headers).is_none();
    let bounds = Bounds { max_bytes: ask.max_bytes, cuts: ask.cuts, idle: ask.idle, until };
    let (body, trouble) = match is_wanted {
        true => match body::read(&head, body, bounds, ask.file.filter(|_| is_good)).await {
            Ok(body) => (body, None),
            Err(missed) => (Body::none(), Some(missed)),
        },
        false => (Body::none(), None),
    };
    let page = ask.kind == Kind::Page && is_good;
    let not_before = not_before(status, &head.headers, now, ask.delay.map(|delay| ticket.now() + delay));
    ticket.settle(Outcome::Answered { status, page, not_before }).await;
    Heard::Answer(Answer { status, headers: head.headers, body, trouble })
}

/// A site's own delay only slows: it is no answer to how long a server that says no wants to be left alone.
fn not_before(status: u16, headers: &HeaderMap, now: Timestamp, delayed: Option<Timestamp>) -> Option<Timestamp> {
    match signals::not_before(status, headers, now) {
        None if matches!(status, 429 | 503) => None,
        said => said.max(delayed),
    }
}
