//! Sessions and tokens while Redis is away: limits go on, and nobody who was shown the door comes back.

use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::RedisServer;
use serde_json::json;

use crate::ask;
use crate::clock::{now, pass};
use crate::ledger::{Entry, Op, Outcome};
use crate::load::{Mix, jti};
use crate::outage::{Outage, WARM};
use crate::report::{Line, Target, time};
use crate::rig::{Rig, Settings};

/// With Redis well, and the same again while it is away.
const REVOKED_BEFORE: usize = 1;
const REVOKED_MEANWHILE: usize = 2;
/// Within which every instance knows of a revocation, with Redis well.
const PROPAGATION: Duration = Duration::from_secs(1);

pub(super) fn lost(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let mix = Mix { sessions: 500.0, tokens: 500.0, ..Mix::checks(settings.limit, settings.window) };
    let revoke = |user| {
        ask::send(
            rig.instances[0].api(),
            "PUT",
            &format!("/v1/tokens/access/{}", jti(user)),
            "",
            &json!({ "ttl": 3600 }).to_string(),
        )
    };
    let mut revoked = Vec::new();
    let fault = |_: &_| {
        revoke(REVOKED_BEFORE)?;
        revoked.push((REVOKED_BEFORE, now(), PROPAGATION));
        pass(Duration::from_secs(1));
        redis.kill9();
        pass(Duration::from_secs(1));
        revoke(REVOKED_MEANWHILE)?;
        revoked.push((REVOKED_MEANWHILE, now(), settings.max_staleness));
        pass(Duration::from_secs(7));
        redis.restart();
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM, fault, Duration::from_secs(6))?;

    let accepted = |user: usize| {
        move |entry: &&Entry| entry.op == Op::Token && entry.subject == user && entry.outcome == Outcome::Admitted
    };
    let mut lines = vec![outage.failed()];
    for (user, at, bound) in revoked {
        let late = outage.entries.iter().filter(accepted(user)).map(|entry| entry.sent.saturating_sub(at));
        let last = late.clone().max().unwrap_or_default();
        let beyond = late.filter(|late| *late > bound).count();
        let figure = if user == REVOKED_BEFORE {
            "revoked token accepted for"
        } else {
            "revoked during the outage, accepted for"
        };
        let line = Line::new(figure, time(bound), time(last), beyond == 0);
        lines.push(line.toward(Target::Revoked, beyond as f64));
    }
    let sessions = |outcome: Outcome| {
        outage.entries.iter().filter(|entry| entry.op == Op::Session && entry.outcome == outcome).count()
    };
    lines.push(Line::none("sessions lost", sessions(Outcome::Unknown) as u64, ""));
    let settled = outage.ended + Duration::from_secs(2);
    let wrong = outage.entries.iter().filter(|entry| {
        let is_person = matches!(entry.op, Op::Session | Op::Token);
        is_person && entry.sent >= settled && entry.outcome.is_failure()
    });
    let wrong: Vec<&Entry> = wrong.collect();
    let mut line = Line::none("sessions and tokens unanswered 2 s after Redis is back", wrong.len() as u64, "");
    if let Some(last) = wrong.last() {
        let after = time(last.done.saturating_sub(outage.ended));
        line.measured.push_str(&format!(", the last {:?} {:?} {after} after", last.op, last.outcome));
    }
    lines.push(line);
    let closed = outage
        .entries
        .iter()
        .filter(|entry| matches!(entry.op, Op::Session | Op::Token) && entry.outcome == Outcome::Failed(503));
    lines.push(Line::new(
        "sessions and tokens answered 503 meanwhile",
        "as configured: closed",
        closed.count().to_string(),
        true,
    ));
    Ok(lines)
}
