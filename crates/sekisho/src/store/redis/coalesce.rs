//! Calls that come while others are out share one.
//!
//! A lone caller sends its own `EVALSHA` at once, in its own future: a hop through another task would cost it half as
//! much again. Only when `in_flight` calls are out already do jobs wait, and whoever gets an answer first sends all
//! that waits. Each of the callers may be dropped at any moment, so no caller ever carries another's job: the shared
//! calls run in tasks of their own.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{
    call::{self, Call},
    error::{Error, Failure},
    node::Node,
    script::{Job, Script},
};

/// What of a job decides whether it may share an `EVALSHA` with another, and for how long it may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// On Cluster the slot; 0 where slots do not matter.
    pub(super) slot: u16,
    /// It goes out by itself. While a slot moves, keys that are together in one call may be apart in the cluster.
    pub(super) alone: bool,
    pub(super) deadline: Instant,
}

/// A job that did not get its answer, given back so that it can be sent again.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) why: Failure,
    pub(super) job: Job,
}

type Answer = Result<Value, Box<Returned>>;

/// Sends `job` to `node`, by itself or with others. When the future is dropped, `sent` tells whether the server may
/// have seen the job; a job that still waits is withdrawn.
pub(super) async fn submit(node: &Arc<Node>, script: &Arc<Script>, job: Job, terms: Terms, sent: &mut bool) -> Answer {
    match node.queue.enter(node, script, job, terms) {
        Turn::Now(permit, job) => {
            let answer = call::send_one(node, script, &job, sent).await;
            drop(permit);
            answer.map_err(|why| Box::new(Returned { why, job }))
        }
        Turn::Later(number, answer) => {
            let mut ticket = Ticket { node, number, sent, settled: false };
            let answer = answer.await;
            ticket.settled = true;
            answer.unwrap_or_else(|_| {
                // Only when the runtime is shut down: it may have been in the middle of the call.
                let why = Failure::Final(Error::unknown("the runtime was shut down"));
                Err(Box::new(Returned { why, job: Job::default() }))
            })
        }
        Turn::Never(job) => Err(Box::new(Returned { why: Failure::Final(Error::Overloaded), job })),
    }
}

/// The jobs that wait for one server, first come, first served, whatever their script.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    /// The number of the first place in `places`. Numbers are given in order, so a place is found without a search.
    first: u64,
    /// A withdrawn job leaves its place empty.
    places: VecDeque<Option<Waiting>>,
    waiting: usize,
}

struct Waiting {
    script: Arc<Script>,
    job: Job,
    terms: Terms,
    answer: oneshot::Sender<Answer>,
}

enum Turn {
    Now(Permit, Job),
    Later(u64, oneshot::Receiver<Answer>),
    Never(Job),
}

impl Queue {
    fn enter(&self, node: &Arc<Node>, script: &Arc<Script>, job: Job, terms: Terms) -> Turn {
        let mut state = self.state.lock();
        if state.in_flight < node.options.in_flight.max(1) && state.waiting == 0 {
            state.in_flight += 1;
            drop(state);
            return Turn::Now(Permit { node: node.clone(), held: true }, job);
        }
        if state.waiting >= node.options.queue {
            return Turn::Never(job);
        }
        let (answer, receiver) = oneshot::channel();
        let number = state.first + state.places.len() as u64;
        state.places.push_back(Some(Waiting { script: script.clone(), job, terms, answer }));
        state.waiting += 1;
        Turn::Later(number, receiver)
    }

    /// Takes a job back out. False if it has been taken to be sent.
    fn withdraw(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let Some(at) = number.checked_sub(state.first) else { return false };
        let found = usize::try_from(at).ok().and_then(|at| state.places.get_mut(at)).and_then(Option::take);
        if found.is_some() {
            state.waiting -= 1;
        }
        found.is_some()
    }

    /// The next jobs to send, or none, and then one call fewer is out.
    fn next_or_leave(&self, most: usize) -> Vec<Waiting> {
        let mut state = self.state.lock();
        let mut batch = Vec::with_capacity(most.min(state.waiting));
        while batch.len() < most
            && let Some(place) = state.places.pop_front()
        {
            state.first += 1;
            if let Some(waiting) = place {
                state.waiting -= 1;
                batch.push(waiting);
            }
        }
        if batch.is_empty() {
            state.in_flight -= 1;
        }
        batch
    }

    /// One call fewer is out, unless somebody waits for it.
    fn leave(&self) -> bool {
        let mut state = self.state.lock();
        if state.waiting == 0 {
            state.in_flight -= 1;
        }
        state.waiting == 0
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Queue").field("in_flight", &state.in_flight).field("waiting", &state.waiting).finish()
    }
}

/// The right to have one call out. Dropped, by a caller that goes away too, it passes to those who wait.
struct Permit {
    node: Arc<Node>,
    held: bool,
}

impl Permit {
    fn next(&mut self) -> Vec<Waiting> {
        let batch = self.node.queue.next_or_leave(self.node.options.batch.max(1));
        self.held = !batch.is_empty();
        batch
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held && !self.node.queue.leave() {
            self.node.runtime.spawn(drain(self.node.clone()));
        }
    }
}

/// Sends what waits until nothing does. The jobs are taken here and not when the task is spawned: until it runs they
/// can be withdrawn, and callers that run out of time know that nothing was sent.
async fn drain(node: Arc<Node>) {
    let mut permit = Permit { node, held: true };
    loop {
        let batch = permit.next();
        if batch.is_empty() {
            return;
        }
        send(&permit.node, batch).await;
    }
}

/// The place of a job in the queue, for as long as its caller waits.
struct Ticket<'a> {
    node: &'a Arc<Node>,
    number: u64,
    sent: &'a mut bool,
    settled: bool,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.settled && !self.node.queue.withdraw(self.number) {
            *self.sent = true;
        }
    }
}

async fn send(node: &Arc<Node>, batch: Vec<Waiting>) {
    let now = Instant::now();
    let (batch, late): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(|waiting| !waiting.answer.is_closed())
        .partition(|waiting| waiting.terms.deadline > now);
    for waiting in late {
        let why = Failure::Final(Error::unavailable(format!("{}: no turn came in time", node.address)));
        let _ = waiting.answer.send(Err(Box::new(Returned { why, job: waiting.job })));
    }
    let Some(latest) = batch.iter().map(|waiting| waiting.terms.deadline).max() else { return };
    let (calls, places) = group(&batch);
    let answers = timeout_at(latest, call::send_many(node, &calls)).await;
    drop(calls);
    let answers = answers.unwrap_or_else(|_| {
        let late = Failure::Lost { reason: "no answer in time".into() };
        places.iter().map(|_| Err(late.clone())).collect()
    });
    let mut jobs: Vec<Option<Waiting>> = batch.into_iter().map(Some).collect();
    for (answers, places) in answers.into_iter().zip(places) {
        let each: Vec<Result<Value, Failure>> = match answers {
            Ok(each) => each,
            Err(failure) => vec![Err(failure); places.len()],
        };
        for (answer, place) in each.into_iter().zip(places) {
            let Some(waiting) = jobs[place].take() else { continue };
            let answer = answer.map_err(|why| Box::new(Returned { why, job: waiting.job }));
            // A caller that has gone away has no use for its answer.
            let _ = waiting.answer.send(answer);
        }
    }
}

/// Jobs of the same script and slot make one call. The second list says which jobs are in which call.
fn group(batch: &[Waiting]) -> (Vec<Call<'_>>, Vec<Vec<usize>>) {
    let mut calls: Vec<Call<'_>> = Vec::new();
    let mut slots: Vec<Option<u16>> = Vec::new();
    let mut places: Vec<Vec<usize>> = Vec::new();
    // Calls before this one are closed: another job in them would overtake one that has to come first.
    let mut first_open = 0;
    for (place, waiting) in batch.iter().enumerate() {
        let slot = (!waiting.terms.alone).then_some(waiting.terms.slot);
        let shared = (first_open..calls.len()).find(|&at| {
            slot.is_some()
                && slots[at] == slot
                && (std::ptr::eq(calls[at].script, &*waiting.script) || calls[at].script.sha() == waiting.script.sha())
        });
        let at = shared.unwrap_or(calls.len());
        if shared.is_some() {
            calls[at].jobs.push(&waiting.job);
            places[at].push(place);
        } else {
            calls.push(Call { script: &waiting.script, jobs: vec![&waiting.job] });
            slots.push(slot);
            places.push(vec![place]);
        }
        if waiting.job.before_others {
            first_open = at;
        }
    }
    (calls, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(script: &Arc<Script>, before_others: bool) -> Waiting {
        let terms = Terms { slot: 0, alone: false, deadline: Instant::now() };
        let mut job = Job::with_capacity(0);
        job.before_others = before_others;
        Waiting { script: script.clone(), job, terms, answer: oneshot::channel().0 }
    }

    #[test]
    fn nothing_overtakes_a_job_that_comes_before_others() {
        let [check, any] = ["return 1", "return 2"].map(|source| Arc::new(Script::new(source)));
        let plain = [(&check, false), (&any, false), (&check, false)].map(|(script, first)| waiting(script, first));
        assert_eq!(group(&plain).1, [vec![0, 2], vec![1]]);
        let ordered = [(&check, false), (&any, true), (&check, false), (&any, false), (&check, false)];
        let ordered = ordered.map(|(script, first)| waiting(script, first));
        assert_eq!(group(&ordered).1, [vec![0], vec![1, 3], vec![2, 4]]);
    }
}
