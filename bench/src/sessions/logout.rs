//! Force-logout among a million sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sekisho::sessions::{Put, SessionId, Sessions, Sid, UserId};
use sekisho_testkit::{RedisServer, Reply};
use serde_json::{Map, Value, json};

use super::figure;
use super::store::connect;
use crate::measure::{median, row};

const SESSIONS: usize = 1_000_000;
/// Users that are thrown out, and how many sessions each has. The others have ten each.
const CROWDED: usize = 7;
const OF_EACH: usize = 10_000;
const FILLERS: usize = 256;

/// On one thread: what the store leaves for later has not begun when the answer is here, so that the server's count is of
/// the answer alone.
#[tokio::main(flavor = "current_thread")]
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) async fn run() -> anyhow::Result<()> {
    println!("\n## Force-logout of a user with {OF_EACH} sessions, among {SESSIONS} (medians of {CROWDED} users)\n");
    let server = RedisServer::start();
    let sessions = connect(&server).await?;
    fill(&sessions).await?;
    let size = server.command(&["DBSIZE"]).int();
    anyhow::ensure!(size >= SESSIONS as i64, "there are only {size} keys");
    // Whoever asks next is another process.
    let elsewhere = connect(&server).await?;
    // The first call of a connection sends the script itself.
    sessions.end_all(&UserId::new("nobody")?).await?;
    let (mut answered, mut refused, mut removed, mut calls, mut refusals) = (vec![], vec![], vec![], vec![], 0);
    for number in 0..CROWDED {
        let user = UserId::new(crowded(number))?;
        let index = format!("sidx:{}", user.as_str());
        let sids = sids(&server, &index);
        anyhow::ensure!(sids.len() == OF_EACH, "{} sessions", sids.len());
        let before = figure(&server, "commandstats", "cmdstat_evalsha");
        let start = Instant::now();
        sessions.end_all(&user).await?;
        answered.push(start.elapsed().as_secs_f64() * 1_000.0);
        calls.push(figure(&server, "commandstats", "cmdstat_evalsha") - before);
        let asked = Instant::now();
        for (place, sid) in sids.iter().step_by(97).enumerate() {
            let id = SessionId { user: user.clone(), sid: Sid::new(sid)? };
            anyhow::ensure!(elsewhere.get(&id).await?.is_none(), "a session is alive after the force-logout");
            refusals += 1;
            if place == 0 {
                refused.push(asked.elapsed().as_secs_f64() * 1_000.0);
            }
        }
        while server.command(&["EXISTS", &index]).int() == 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        removed.push(start.elapsed().as_secs_f64() * 1_000.0);
    }
    anyhow::ensure!(calls.iter().all(|count| *count == calls[0]), "calls differ: {calls:?}");
    let ms = |times: &[f64]| format!("{:.1} ms", median(times));
    println!("| | |\n|---|---|");
    row("keys in Redis before", &[("", size.to_string())]);
    row("calls to Redis until the answer", &[("", calls[0].to_string())]);
    row("the answer came after", &[("", ms(&answered))]);
    row("the longest", &[("", format!("{:.1} ms", answered.iter().copied().fold(0.0, f64::max)))]);
    row("gets through another instance right after it, refused", &[("", format!("{refusals} of {refusals}"))]);
    row("the first of them took", &[("", ms(&refused))]);
    row("the last key was removed after", &[("", ms(&removed))]);
    Ok(())
}

fn crowded(number: usize) -> String {
    format!("crowded-{number}")
}

async fn fill(sessions: &Sessions) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let fillers: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (sessions, next) = (sessions.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= SESSIONS {
                        return anyhow::Ok(());
                    }
                    let user = if number < CROWDED * OF_EACH {
                        crowded(number % CROWDED)
                    } else {
                        format!("user-{}", number / 10)
                    };
                    let put = sessions.create(&UserId::new(user)?, members(), None).await?;
                    anyhow::ensure!(matches!(put, Put::Stored(_)), "not stored");
                }
            })
        })
        .collect();
    for filler in fillers {
        filler.await??;
    }
    Ok(())
}

/// Short ones: a million of them must fit.
fn members() -> Map<String, Value> {
    let members = json!({ "ip_address": "192.0.2.17", "user_agent": "Mozilla/5.0 (X11; Linux x86_64)" });
    if let Value::Object(members) = members { members } else { Map::new() }
}

fn sids(server: &RedisServer, index: &str) -> Vec<String> {
    let reply = server.command(&["ZRANGE", index, "0", "-1"]);
    reply.items().iter().map(Reply::text).collect()
}
