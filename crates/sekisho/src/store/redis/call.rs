//! What goes over the wire: `EVALSHA` for one job or many, and what its answer means.

use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisError, Value, aio::MultiplexedConnection};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    error::{Error, Failure},
    lane::Lane,
    node::{Live, Loss, Node},
    probe,
    script::{Job, Script},
};

/// Jobs of one script, in one slot, that go out as one `EVALSHA`.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) jobs: Vec<&'a Job>,
}

/// Sends one job alone. `sent` is set as soon as the server may see it.
pub(super) async fn send_one(node: &Arc<Node>, script: &Script, job: &Job, sent: &mut bool) -> Result<Value, Failure> {
    let live = node.live().ok_or(Failure::Disconnected)?;
    *sent = true;
    let out = Outstanding::new(node, &live, None);
    let mut reply = if script.is_none() {
        let call = Call { script, jobs: vec![job] };
        exchange(&mut live.connection.clone(), &[(&call, Name::Sha)]).await.pop().expect("one for each call")
    } else {
        live.connection.clone().send_packed_command(&command(script, Name::Sha, &[job])).await
    };
    if is_no_script(&reply) {
        reply = live.connection.clone().send_packed_command(&command(script, Name::Source, &[job])).await;
    }
    out.settle(reply.as_ref().err());
    let mut values = read(node, &live, reply, 1)?;
    values.pop().expect("read has counted them")
}

/// Sends a job to the server its slot is moving to, which takes it only after `ASKING`.
pub(super) async fn send_asking(
    node: &Arc<Node>,
    script: &Script,
    job: &Job,
    sent: &mut bool,
) -> Result<Value, Failure> {
    let live = node.live().ok_or(Failure::Disconnected)?;
    *sent = true;
    let out = Outstanding::new(node, &live, None);
    let mut connection = live.connection.clone();
    let mut name = Name::Sha;
    let reply = loop {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(redis::cmd("ASKING")).add_command(command(script, name, &[job]));
        let reply = connection.send_packed_commands(&pipeline, 0, 2).await;
        let reply = reply.map(|mut replies| replies.pop().unwrap_or(Value::Nil));
        if name == Name::Source || !is_no_script(&reply) {
            break reply;
        }
        name = Name::Source;
    };
    out.settle(reply.as_ref().err());
    let mut values = read(node, &live, reply, 1)?;
    values.pop().expect("read has counted them")
}

/// Sends many calls at once and gives, for each call, what each of its jobs got.
pub(super) async fn send_many(node: &Arc<Node>, lane: Option<&Arc<Lane>>, calls: &[Call<'_>]) -> Vec<Answers> {
    let Some(live) = node.live() else { return calls.iter().map(|_| Err(Failure::Disconnected)).collect() };
    let own = lane.and_then(|lane| Some((lane, lane.connection(node, &live)?)));
    let (lane, mut connection) = match own {
        Some((lane, connection)) => (Some(lane), connection),
        None => (None, live.connection.clone()),
    };
    let out = Outstanding::new(node, &live, lane);
    let named: Vec<_> = calls.iter().map(|call| (call, Name::Sha)).collect();
    let mut replies = exchange(&mut connection, &named).await;
    let unknown: Vec<usize> = (0..calls.len()).filter(|&at| is_no_script(&replies[at])).collect();
    if !unknown.is_empty() {
        let again: Vec<_> = unknown.iter().map(|&at| (&calls[at], Name::Source)).collect();
        for (&at, reply) in unknown.iter().zip(exchange(&mut connection, &again).await) {
            replies[at] = reply;
        }
    }
    out.settle(replies.iter().find_map(|reply| reply.as_ref().err()));
    calls.iter().zip(replies).map(|(call, reply)| read(node, &live, reply, call.jobs.len())).collect()
}

/// One element per job, or one failure for all of them.
pub(super) type Answers = Result<Vec<Result<Value, Failure>>, Failure>;

/// The script by its name, which is short, or by its source, which also teaches the server the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Sha,
    Source,
}

fn command(script: &Script, name: Name, jobs: &[&Job]) -> Cmd {
    let keys: usize = jobs.iter().map(|job| job.keys().len()).sum();
    let args: usize = jobs.iter().map(|job| job.arguments().len()).sum();
    let bytes: usize = jobs.iter().map(|job| job.size()).sum();
    let (verb, body) = match name {
        Name::Sha => ("EVALSHA", script.sha()),
        Name::Source => ("EVAL", script.source()),
    };
    let mut command = Cmd::with_capacity(3 + keys + args, verb.len() + body.len() + 8 + bytes);
    command.arg(verb).arg(body).arg(keys);
    for key in jobs.iter().flat_map(|job| job.keys()) {
        command.arg(key);
    }
    for argument in jobs.iter().flat_map(|job| job.arguments()) {
        command.arg(argument);
    }
    command
}

/// One reply for each call, in one round trip.
async fn exchange(
    connection: &mut MultiplexedConnection,
    calls: &[(&Call<'_>, Name)],
) -> Vec<Result<Value, RedisError>> {
    if let [(call, name)] = calls
        && !call.script.is_none()
    {
        return vec![connection.send_packed_command(&command(call.script, *name, &call.jobs)).await];
    }
    // One command needs no pipeline, which would copy it once more.
    if let [(call, _)] = calls
        && let [job] = call.jobs[..]
        && job.commands().len() == 1
    {
        let command = job.commands().map(plain).next().unwrap_or_default();
        let answer = connection.send_packed_command(&command).await;
        return vec![answer.map(|answer| reply_to(call, &mut std::iter::once(answer)))];
    }
    let mut pipeline = Pipeline::with_capacity(calls.iter().map(|(call, _)| call.jobs.len()).sum());
    for (call, name) in calls {
        if call.script.is_none() {
            let asked = call.jobs.iter().enumerate().filter(|(at, _)| !is_asked_before(&call.jobs, *at));
            asked.flat_map(|(_, job)| job.commands()).for_each(|parts| _ = pipeline.add_command(plain(parts)));
        } else {
            pipeline.add_command(command(call.script, *name, &call.jobs));
        }
    }
    match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
        // Errors of the server stay where they are, in the place of their own answer.
        Ok(replies) => {
            let mut replies = replies.into_iter();
            calls.iter().map(|(call, _)| Ok(reply_to(call, &mut replies))).collect()
        }
        Err(error) => vec![Err(error); calls.len()],
    }
}

/// Whether an earlier one of these jobs gets the answer of this one, too.
fn is_asked_before(jobs: &[&Job], at: usize) -> bool {
    at > 0 && jobs[at].shared && jobs[at - 1].shared
}

fn plain<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]>) -> Cmd {
    let parts: SmallVec<[&[u8]; 8]> = parts.collect();
    let mut command = Cmd::with_capacity(parts.len(), parts.iter().map(|part| part.len()).sum());
    parts.into_iter().for_each(|part| _ = command.arg(part));
    command
}

/// The answer of a call out of those of its commands, in the form in which a script gives it: one element per job.
fn reply_to(call: &Call<'_>, replies: &mut impl Iterator<Item = Value>) -> Value {
    if !call.script.is_none() {
        return replies.next().unwrap_or(Value::Nil);
    }
    let mut each: Vec<Value> = Vec::with_capacity(call.jobs.len());
    for (at, job) in call.jobs.iter().enumerate() {
        if is_asked_before(&call.jobs, at) {
            each.extend_from_within(at - 1..);
            continue;
        }
        let answers: Vec<Value> = replies.by_ref().take(job.commands().len()).collect();
        let is_error = |answer: &&Value| matches!(answer, Value::ServerError(_));
        each.push(answers.iter().find(is_error).cloned().unwrap_or(Value::Array(answers)));
    }
    // A server that does not serve at all says so to every job. Where it serves some, only those that it refused know of it.
    let is_refused = |answer: &Value| match answer {
        Value::ServerError(error) => !matches!(Failure::from_call(error), Failure::Final(_)),
        _ => false,
    };
    match each.first() {
        Some(first) if each.iter().all(is_refused) => first.clone(),
        _ => Value::Array(each),
    }
}

fn is_no_script(reply: &Result<Value, RedisError>) -> bool {
    matches!(reply, Ok(Value::ServerError(error)) if error.code() == "NOSCRIPT")
}

fn read(node: &Arc<Node>, live: &Live, reply: Result<Value, RedisError>, jobs: usize) -> Answers {
    match reply {
        Ok(Value::Array(values)) if values.len() == jobs => {
            node.answered(live.epoch, false);
            let answer = |value| match value {
                Value::ServerError(error) => Err(Failure::from_job(&error)),
                value => Ok(value),
            };
            Ok(values.into_iter().map(answer).collect())
        }
        Ok(Value::ServerError(error)) => {
            let failure = Failure::from_call(&error);
            if matches!(failure, Failure::ReadOnly) {
                node.drop_connection(live.epoch, Loss::ReadOnly);
            }
            node.answered(live.epoch, probe::refuses(error.code()));
            Err(failure)
        }
        Ok(other) => Err(Failure::Final(Error::BadReply {
            reason: match other {
                Value::Array(values) => format!("{} elements for {jobs} jobs", values.len()).into(),
                _ => "not an array".into(),
            },
        })),
        Err(error) => Err(Failure::Lost { reason: error.to_string().into() }),
    }
}

/// A call that is out. Whoever stops waiting for it drops this, and if that was after most of the deadline and nothing was
/// heard since, the connection goes: calls sent after it would stand behind a server that has stopped, and run when nobody
/// waits.
struct Outstanding<'a> {
    node: &'a Arc<Node>,
    live: &'a Live,
    /// Over whose connection it is out, if not over the server's.
    lane: Option<&'a Arc<Lane>>,
    heard: u32,
    since: Instant,
    settled: bool,
}

impl<'a> Outstanding<'a> {
    fn new(node: &'a Arc<Node>, live: &'a Live, lane: Option<&'a Arc<Lane>>) -> Self {
        Self { node, live, lane, heard: live.heard(), since: Instant::now(), settled: false }
    }

    fn settle(mut self, error: Option<&RedisError>) {
        self.settled = true;
        match (error, self.lane) {
            (None, _) => self.node.heard(self.live),
            (Some(_), Some(lane)) => lane.lost(self.live.epoch),
            (Some(_), None) => self.node.drop_connection(self.live.epoch, Loss::Closed),
        }
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        // Not after any time-out: a job that waited for its turn has little time left when it is sent, and that says
        // nothing about the server.
        if !self.settled && self.since.elapsed() * 4 >= self.node.options.timeout * 3 {
            self.node.missed(self.live, self.heard);
        }
    }
}
