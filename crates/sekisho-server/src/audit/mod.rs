//! Who has done what, and when: a line before every act of an operator, and one that says how it went.
//!
//! Tokens and session ids are in it only as hashes. What is written is one line of JSON in ASCII without control characters,
//! whatever somebody put into a name.

mod act;
mod operator;
mod sink;

use std::sync::Arc;

use sekisho::clock::{Clock, WallClock};
use serde_json::{Map, Value, json};

use crate::config::AuditTo;
use crate::metrics::Metrics;
use crate::respond::Problem;
use crate::start::StartError;
pub(crate) use act::{Act, hashed};
pub(crate) use operator::Operator;
use sink::Sink;

#[derive(Debug)]
pub(crate) struct Audit {
    sink: Sink,
    clock: WallClock,
    metrics: Arc<Metrics>,
}

/// An act whose first line is written. Dropped without an end it stays `asked`: nobody knows whether it was done.
#[derive(Debug)]
#[must_use]
pub(crate) struct Begun<'a> {
    audit: &'a Audit,
    line: Map<String, Value>,
}

impl Audit {
    pub(crate) fn open(to: &AuditTo, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let sink = Sink::open(to).map_err(|(file, error)| StartError::Audit { file, error })?;
        Ok(Self { sink, clock: WallClock::new(), metrics })
    }

    /// Does `act` between its two lines.
    ///
    /// If the first cannot be written, an act that gives somebody something is refused. One that takes away is done all the
    /// same: who fills a disk must not keep a stolen session alive by it.
    pub(crate) async fn of<T>(
        &self,
        operator: &Operator,
        act: Act,
        doing: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let begun = self.begin(operator, act).ok_or_else(Problem::not_audited)?;
        let outcome = doing.await;
        begun.end(outcome.as_ref().err().map(Problem::status_code));
        outcome
    }

    /// None where the act must not be done.
    pub(crate) fn begin(&self, operator: &Operator, act: Act) -> Option<Begun<'_>> {
        let mut line = Map::new();
        line.insert("id".to_owned(), json!(format!("{:016x}", rand::random::<u64>())));
        line.insert("act".to_owned(), json!(act.name));
        line.insert("who".to_owned(), json!(operator.who));
        if let Some(from) = operator.from {
            line.insert("from".to_owned(), json!(from.to_string()));
        }
        line.extend(act.about);
        let begun = Begun { audit: self, line };
        (begun.write("asked", None) || !act.gives).then_some(begun)
    }

    fn now(&self) -> String {
        let micros = i64::try_from(self.clock.now().as_micros()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_microsecond(micros).map_or_else(|_| String::new(), |now| format!("{now:.3}"))
    }
}

impl Begun<'_> {
    /// `failed` is the status that the caller was told.
    pub(crate) fn end(self, failed: Option<u16>) {
        self.write(if failed.is_some() { "failed" } else { "done" }, failed);
    }

    fn write(&self, step: &'static str, status: Option<u16>) -> bool {
        let mut line = self.line.clone();
        line.insert("at".to_owned(), json!(self.audit.now()));
        line.insert("step".to_owned(), json!(step));
        if let Some(status) = status {
            line.insert("status".to_owned(), json!(status));
        }
        match self.audit.sink.write(&line) {
            Ok(()) => true,
            Err(error) => {
                self.audit.metrics.audit_failed();
                let act = self.line["act"].as_str().unwrap_or_default();
                tracing::error!(%error, act, step, "the audit log cannot be written");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(file: &std::path::Path) -> Audit {
        Audit::open(&AuditTo::File(file.to_owned()), Arc::default()).unwrap()
    }

    fn lines(file: &std::path::Path) -> Vec<Value> {
        std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn an_act_is_two_lines_with_one_id() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        let audit = audit(&file);
        let operator = Operator::local();
        let act = || Act::giving("grant").about("policy", "demo");
        audit.of(&operator, act(), async { Ok(()) }).await.unwrap();
        let failing = async { Err::<(), _>(Problem::not_found()) };
        audit.of(&operator, act(), failing).await.unwrap_err();
        let lines = lines(&file);
        let steps: Vec<_> = lines.iter().map(|line| line["step"].as_str().unwrap()).collect();
        assert_eq!(steps, ["asked", "done", "asked", "failed"]);
        assert!(lines[0]["id"] == lines[1]["id"] && lines[1]["id"] != lines[2]["id"], "{lines:?}");
        assert_eq!(
            (&lines[3]["status"], &lines[3]["who"], &lines[3]["policy"]),
            (&json!(404), &json!("local"), &json!("demo"))
        );
        let at = lines[0]["at"].as_str().unwrap();
        assert!(at.ends_with('Z') && at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    }

    /// `/dev/full` takes no byte.
    #[tokio::test]
    async fn without_a_line_nothing_is_given_but_all_can_be_taken_away() {
        let audit = audit("/dev/full".as_ref());
        let mut done = Vec::new();
        for (name, act) in [("grant", Act::giving("grant")), ("session_end", Act::ending("session_end"))] {
            let doing = async {
                done.push(name);
                Ok(())
            };
            let outcome = audit.of(&Operator::local(), act, doing).await;
            assert_eq!(outcome.err().map(|problem| problem.status_code()), (name == "grant").then_some(503));
        }
        assert_eq!(done, ["session_end"]);
        let metrics = audit.metrics.rendered();
        assert!(metrics.contains("sekisho_audit_failures_total 3"), "{metrics}");
    }
}
