//! What one subject was admitted, by the word of every answer.

use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use sekisho_testkit::poll_until;
use serde_json::{Value, json};

use crate::rig::degraded_of;
use crate::support::{Reply, TestServer};

const PATIENCE: Duration = Duration::from_secs(10);

/// Of the policies in the rig.
pub(crate) const LIMIT: u64 = 20;

const DEGRADED: &str = "x-sekisho-degraded";

pub(crate) struct Account<'a> {
    server: &'a TestServer,
    subject: String,
    admitted: AtomicU64,
    /// How many of them the store may have been asked for as well.
    unsure: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) is_allowed: bool,
    pub(crate) is_degraded: bool,
}

impl<'a> Account<'a> {
    pub(crate) fn of(server: &'a TestServer, subject: &str) -> Self {
        Account { server, subject: subject.to_owned(), admitted: AtomicU64::new(0), unsure: AtomicU64::new(0) }
    }

    /// Charges one. Only a limit may refuse it, and whoever decided without the store says so.
    #[track_caller]
    pub(crate) fn check(&self) -> Checked {
        self.check_on(self.server)
    }

    #[track_caller]
    pub(crate) fn check_on(&self, server: &TestServer) -> Checked {
        self.enter(&server.post("/v1/check", json!({ "policy": "day", "subject": self.subject })))
    }

    /// Charges one that must be admitted, and tells what the answer says is used.
    #[track_caller]
    pub(crate) fn checked_used(&self) -> u64 {
        let reply = self.server.post("/v1/check", json!({ "policy": "day", "subject": self.subject }));
        assert!(self.enter(&reply).is_allowed, "{}", reply.text);
        assert_eq!(reply.json()["subject"], self.subject.as_str());
        reply.json()["rules"][0]["used"].as_u64().unwrap()
    }

    /// Charges one to each of two policies.
    #[track_caller]
    pub(crate) fn check_both(&self) -> Checked {
        let charges = ["day", "other"].map(|policy| json!({ "policy": policy, "subject": self.subject }));
        self.enter(&self.server.post("/v1/check", json!({ "charges": charges })))
    }

    #[track_caller]
    fn enter(&self, reply: &Reply) -> Checked {
        assert!([200, 429].contains(&reply.status), "{} {}", reply.status, reply.text);
        let answer = reply.json();
        let label = degraded_of(&answer);
        assert!(["", "memory"].contains(&label), "{label}");
        assert_eq!(reply.header(DEGRADED), label, "the header says what the body says");
        let checked = Checked { is_allowed: reply.status == 200, is_degraded: !label.is_empty() };
        self.admitted.fetch_add(u64::from(checked.is_allowed), Ordering::SeqCst);
        self.unsure.fetch_add(u64::from(checked.is_degraded), Ordering::SeqCst);
        checked
    }

    /// Holds one, by whomever.
    #[track_caller]
    pub(crate) fn reserve(&self) -> Value {
        let reply = self.server.post("/v1/reserve", json!({ "policy": "day", "subject": self.subject }));
        let header = reply.header(DEGRADED).to_owned();
        let answer = reply.expect(200);
        assert_eq!(header, degraded_of(&answer));
        answer["reservation"].clone()
    }

    /// Ends a reservation, at so much. Asked again, nothing more is admitted: count it once. Tells whether the store did it.
    #[track_caller]
    pub(crate) fn settle(&self, reservation: &Value, cost: u64) -> bool {
        let body = json!({ "reservation": reservation, "cost": { "requests": cost } });
        is_shared_end(self.server.post("/v1/settle", body), "settled")
    }

    #[track_caller]
    pub(crate) fn release(&self, reservation: &Value) -> bool {
        is_shared_end(self.server.post("/v1/release", json!({ "reservation": reservation })), "released")
    }

    /// What was settled is admitted, too.
    pub(crate) fn admit(&self, cost: u64) {
        self.admitted.fetch_add(cost, Ordering::SeqCst);
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    pub(crate) fn counted(&self) -> (u64, u64) {
        self.server.counted("day", &self.subject)
    }

    /// Redis comes to count what was admitted. Where replies were lost, no less than that, and no more than it may have been
    /// asked.
    #[track_caller]
    pub(crate) fn assert_counted(&self, exactly: bool) {
        let admitted = self.admitted();
        let slack = if exactly { 0 } else { self.unsure.load(Ordering::SeqCst) };
        let range = admitted..=admitted + slack;
        let mut counted = (0, 0);
        let told = poll_until(PATIENCE, || {
            counted = self.counted();
            (counted.1 == 0 && range.contains(&counted.0)).then_some(())
        });
        assert!(told.is_some(), "{}: {counted:?} counted and held, {range:?} admitted", self.subject);
    }

    /// Goes on until the limit refuses, with the store deciding all the time.
    #[track_caller]
    pub(crate) fn use_up(&self) {
        loop {
            let checked = self.check();
            assert!(!checked.is_degraded, "{} {checked:?}", self.subject);
            if !checked.is_allowed {
                return;
            }
        }
    }
}

#[track_caller]
fn is_shared_end(reply: Reply, state: &str) -> bool {
    let label = reply.header(DEGRADED).to_owned();
    assert_eq!(reply.expect(200)["state"], state);
    assert!(["", "memory"].contains(&label.as_str()), "{label}");
    label.is_empty()
}
