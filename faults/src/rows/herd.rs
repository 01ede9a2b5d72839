//! Everybody at once.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::json;

use crate::ask;
use crate::check::percentile;
use crate::clock::now;
use crate::report::{Line, time};
use crate::rig::{Instance, Rig, Settings};

const CLIENTS: usize = 500;
const ORIGIN: Duration = Duration::from_millis(500);

pub(super) fn cache(_seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let rig = Rig::of_three(&redis.url(), Settings::default());
    rig.await_shared()?;
    rig.origin.take(ORIGIN);
    let ports: Vec<u16> = rig.instances.iter().map(|instance| instance.api()).collect();
    let herd = |count: usize| {
        let barrier = Arc::new(Barrier::new(count * ports.len()));
        let clients: Vec<_> = (0..count * ports.len())
            .map(|number| {
                let (barrier, port) = (Arc::clone(&barrier), ports[number % ports.len()]);
                thread::spawn(move || {
                    barrier.wait();
                    let asked = now();
                    let answer = ask::get(port, "/v1/caches/tiles/herd").map(|(status, _)| status).unwrap_or_default();
                    (answer, now().saturating_sub(asked))
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect::<Vec<_>>()
    };
    let begun = rig.origin.calls();
    let answers = herd(CLIENTS);
    let calls = rig.origin.calls() - begun;
    let failed = answers.iter().filter(|(status, _)| *status != 200).count();
    let took = percentile(answers.iter().map(|(_, took)| *took).collect(), 99.0);
    let bound = ORIGIN + Duration::from_millis(700);
    Ok(vec![
        Line::new("calls to the origin", "n = 3 instances", calls.to_string(), calls <= 3),
        Line::none("clients without an answer", failed as u64, answers.len().to_string()),
        // 1,500 connections are made at once on the machine that serves them.
        Line::new("99 % of the clients", format!("{} + connecting", time(ORIGIN)), time(took), took <= bound),
    ])
}

const DIRTY: usize = 10_000;
const BATCH: usize = 500;

pub(super) fn recovery(_seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let rig = Rig::of_three(&redis.url(), Settings::default());
    rig.await_shared()?;
    redis.kill9();
    let mut admitted = 0;
    for instance in &rig.instances {
        for first in (0..DIRTY).step_by(BATCH) {
            let checks: Vec<_> = (first..first + BATCH)
                .map(|number| json!({ "policy": "counter", "subject": format!("d{number}") }))
                .collect();
            let (status, answer) = ask::post(instance.api(), "/v1/check/batch", &json!({ "checks": checks }))?;
            ensure!(status == 200, "a batch was refused: {status} {answer}");
            admitted +=
                answer["results"].as_array().into_iter().flatten().filter(|result| result["status"] == 200).count();
        }
    }
    let right = |step: usize| {
        let subjects = (0..DIRTY).step_by(step);
        let is_right = |number: usize| {
            let explained = rig.instances[0].explain("counter", &format!("d{number}")).unwrap_or_default();
            let total = explained["rules"].as_array().into_iter().flatten().find(|rule| rule["name"] == "total");
            total.is_some_and(|rule| rule["used"] == 3)
        };
        (subjects.clone().filter(|number| is_right(*number)).count(), subjects.count())
    };
    redis.restart();
    let back = now();
    let mut slowest = Duration::ZERO;
    let written = poll_until(Duration::from_secs(20), || {
        // Others go on meanwhile.
        let asked = now();
        let answer =
            ask::post(rig.instances[0].api(), "/v1/check", &json!({ "policy": "counter", "subject": "bystander" }));
        slowest = slowest.max(now().saturating_sub(asked));
        let is_answered = answer.is_ok_and(|(status, _)| status == 200 || status == 429);
        // What is looked at here would be written back for it: whether all is, only the instances can say.
        let is_told = |instance: &Arc<Instance>| instance.metric("sekisho_write_back_pending") == Some(0.0);
        (is_answered && rig.instances.iter().all(is_told)).then(now)
    });
    let took = written.unwrap_or_else(now).saturating_sub(back);
    let (found, looked) = right(97);
    let stats = redis.command(&["INFO", "commandstats"]).text();
    let scripts: u64 = stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum();
    Ok(vec![
        Line::new("admitted without Redis", "", admitted.to_string(), admitted == DIRTY * 3),
        Line::within("until all is written back", took, Duration::from_secs(5)),
        Line::new(
            "scripts that it took",
            "one for each subject and instance, + 20 %",
            scripts.to_string(),
            scripts <= (DIRTY * 3) as u64 * 12 / 10,
        ),
        Line::within("slowest check of a bystander meanwhile", slowest, Duration::from_millis(100)),
        Line::none("subjects with a wrong total", (looked - found) as u64, looked.to_string()),
    ])
}

fn calls(line: &str) -> Option<u64> {
    line.split_once("calls=")?.1.split(',').next()?.parse().ok()
}
