//! Calls that come while others are out share one.
//!
//! A lone caller sends its own `EVALSHA` at once, in its own future: a hop through another task would cost it half as
//! much again. Only when `in_flight` calls are out already do jobs wait, and whoever gets an answer first sends all
//! that waits. Each of the callers may be dropped at any moment, so no caller ever carries another's job: the shared
//! calls run in tasks of their own.
//!
//! In a lane nobody sends for himself: what a thread asks in the same moment goes out together (`lane`).

use std::{collections::VecDeque, fmt, pin::pin, sync::Arc};

use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{
    call::{self, Call},
    error::{Error, Failure},
    lane::Lane,
    node::Node,
    script::{Job, Script},
};

/// Calls that may be out in one lane. With one alone, who comes while it is out would wait for a whole round trip more; with
/// many, each would carry little.
const OUT_BY_LANE: usize = 2;
/// With so many jobs out in a lane no second call goes out: where much is asked, what counts is how many share one.
const MANY: usize = 8;
/// Where so many wait in a lane, and more, half of them stay for the next call: so that the thread has something to do while one is out.
const PLENTY: usize = 16;

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
    let line = Line { node, lane: None };
    match line.enter(script, job, terms) {
        Turn::Now(permit, job) => {
            let answer = call::send_one(node, script, &job, sent).await;
            drop(permit);
            answer.map_err(|why| Box::new(Returned { why, job }))
        }
        Turn::Later(number, answer) => line.wait(number, answer, sent).await,
        Turn::Never(job) => Err(Returned::overloaded(job)),
    }
}

/// Sends `job` to `node` over a lane. It ends by its deadline: who sends it keeps the time for all that it sends, because a
/// timer for each of them would cost more than all else here. That holds as long as those who come later have later deadlines.
pub(super) async fn submit_by(
    lane: &Arc<Lane>,
    node: &Arc<Node>,
    script: &Arc<Script>,
    job: Job,
    terms: Terms,
) -> Answer {
    let line = Line { node, lane: Some(lane) };
    match line.enter(script, job, terms) {
        Turn::Later(number, answer) => line.wait(number, answer, &mut false).await,
        Turn::Now(_, job) | Turn::Never(job) => Err(Returned::overloaded(job)),
    }
}

impl Returned {
    fn overloaded(job: Job) -> Box<Self> {
        Box::new(Self { why: Failure::Final(Error::Overloaded), job })
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
    /// The jobs in those calls.
    jobs_out: usize,
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
    answer: Caller,
}

type Caller = oneshot::Sender<Answer>;

/// A job on its way.
struct Sent {
    script: Arc<Script>,
    job: Job,
    terms: Terms,
}

impl Waiting {
    fn split(self) -> (Sent, Option<Caller>) {
        (Sent { script: self.script, job: self.job, terms: self.terms }, Some(self.answer))
    }
}

enum Turn {
    Now(Permit, Job),
    Later(u64, oneshot::Receiver<Answer>),
    Never(Job),
}

/// Where jobs stand in line: before a server, each thread's own apart from the others'.
#[derive(Clone, Copy)]
struct Line<'a> {
    node: &'a Arc<Node>,
    lane: Option<&'a Arc<Lane>>,
}

impl Line<'_> {
    fn queue(&self) -> &Queue {
        self.lane.map_or(&self.node.queue, |lane| &lane.queue)
    }

    async fn wait(self, number: u64, answer: oneshot::Receiver<Answer>, sent: &mut bool) -> Answer {
        let mut ticket = Ticket { queue: self.queue(), number, sent, settled: false };
        let answer = answer.await;
        ticket.settled = true;
        answer.unwrap_or_else(|_| {
            // Only when the runtime is shut down: it may have been in the middle of the call.
            let why = Failure::Final(Error::unknown("the runtime was shut down"));
            Err(Box::new(Returned { why, job: Job::default() }))
        })
    }

    fn enter(&self, script: &Arc<Script>, job: Job, terms: Terms) -> Turn {
        let mut state = self.queue().state.lock();
        if self.lane.is_none() && state.in_flight < self.node.options.in_flight.max(1) && state.waiting == 0 {
            state.in_flight += 1;
            drop(state);
            return Turn::Now(Permit { node: self.node.clone(), lane: None, held: true, jobs: 0 }, job);
        }
        if state.waiting >= self.node.options.queue {
            return Turn::Never(job);
        }
        let (answer, receiver) = oneshot::channel();
        let number = state.first + state.places.len() as u64;
        state.places.push_back(Some(Waiting { script: script.clone(), job, terms, answer }));
        state.waiting += 1;
        // The task comes after all that its thread has to do now, and what that asks goes out with it. Where others wait
        // already, one is on its way.
        if let Some(lane) = self.lane
            && state.waiting == 1
            && state.in_flight < OUT_BY_LANE
            && state.jobs_out < MANY
        {
            state.in_flight += 1;
            drop(state);
            lane.runtime.spawn(drain(self.node.clone(), Some(lane.clone())));
        }
        Turn::Later(number, receiver)
    }
}

impl Queue {
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

    /// The next jobs to send for one whose call with `done` jobs has come back, or none, and then one call fewer is out. In a
    /// lane they are left to another call where that has many.
    fn next_or_leave(&self, done: usize, most: usize, is_lane: bool) -> Vec<Waiting> {
        let mut state = self.state.lock();
        state.jobs_out -= done;
        let most = if !is_lane {
            most
        } else if state.jobs_out >= MANY {
            0
        } else {
            most.min(PLENTY.max(state.waiting / 2))
        };
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
        state.jobs_out += batch.len();
        if batch.is_empty() {
            state.in_flight -= 1;
        }
        batch
    }

    /// One call of so many jobs fewer is out, unless somebody waits for it.
    fn leave(&self, jobs: usize) -> bool {
        let mut state = self.state.lock();
        state.jobs_out -= jobs;
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
    lane: Option<Arc<Lane>>,
    held: bool,
    /// What it was used for, but by a caller for itself.
    jobs: usize,
}

impl Permit {
    fn line(&self) -> Line<'_> {
        Line { node: &self.node, lane: self.lane.as_ref() }
    }

    fn next(&mut self) -> Vec<Waiting> {
        let most = self.node.options.batch.max(1);
        let batch = self.line().queue().next_or_leave(self.jobs, most, self.lane.is_some());
        self.held = !batch.is_empty();
        self.jobs = batch.len();
        batch
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held && !self.line().queue().leave(self.jobs) {
            let runtime = self.lane.as_ref().map_or(&self.node.runtime, |lane| &lane.runtime);
            runtime.spawn(drain(self.node.clone(), self.lane.clone()));
        }
    }
}

/// Sends what waits until nothing does. The jobs are taken here and not when the task is spawned: until it runs they
/// can be withdrawn, and callers that run out of time know that nothing was sent.
async fn drain(node: Arc<Node>, lane: Option<Arc<Lane>>) {
    let mut permit = Permit { node, lane, held: true, jobs: 0 };
    loop {
        let batch = permit.next();
        if batch.is_empty() {
            return;
        }
        send(permit.line(), batch).await;
    }
}

/// The place of a job in the queue, for as long as its caller waits.
struct Ticket<'a> {
    queue: &'a Queue,
    number: u64,
    sent: &'a mut bool,
    settled: bool,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.settled && !self.queue.withdraw(self.number) {
            *self.sent = true;
        }
    }
}

async fn send(Line { node, lane }: Line<'_>, batch: Vec<Waiting>) {
    let now = Instant::now();
    let (batch, late): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(|waiting| !waiting.answer.is_closed())
        .partition(|waiting| waiting.terms.deadline > now);
    for waiting in late {
        let why = Failure::Final(Error::unavailable(format!("{}: no turn came in time", node.address)));
        let _ = waiting.answer.send(Err(Box::new(Returned { why, job: waiting.job })));
    }
    let (batch, mut callers): (Vec<_>, Vec<_>) = batch.into_iter().map(Waiting::split).unzip();
    let (calls, places) = group(&batch);
    let answers = in_time(&batch, &mut callers, call::send_many(node, lane, &calls)).await;
    drop(calls);
    let mut jobs: Vec<Option<Job>> = batch.into_iter().map(|sent| Some(sent.job)).collect();
    for (answers, places) in answers.into_iter().flatten().zip(places) {
        let each: Vec<Result<Value, Failure>> = match answers {
            Ok(each) => each,
            Err(failure) => vec![Err(failure); places.len()],
        };
        for (answer, place) in each.into_iter().zip(places) {
            let (Some(job), Some(caller)) = (jobs[place].take(), callers[place].take()) else { continue };
            // A caller that has gone away has no use for its answer.
            let _ = caller.send(answer.map_err(|why| Box::new(Returned { why, job })));
        }
    }
}

/// Waits for a call, and tells those whose time is over meanwhile. `None` when it is over for all.
async fn in_time<T>(batch: &[Sent], callers: &mut [Option<Caller>], call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    loop {
        let left = batch.iter().zip(&*callers).filter(|(_, caller)| caller.is_some());
        let next = left.map(|(sent, _)| sent.terms.deadline).min()?;
        if let Ok(answers) = timeout_at(next, &mut call).await {
            return Some(answers);
        }
        let now = next.max(Instant::now());
        for (_, caller) in batch.iter().zip(&mut *callers).filter(|(sent, _)| sent.terms.deadline <= now) {
            let why = Failure::Final(Error::unknown("no answer in time"));
            // Nothing is left of its time in which the job could be sent again.
            let told = caller.take().map(|caller| caller.send(Err(Box::new(Returned { why, job: Job::default() }))));
            drop(told);
        }
    }
}

/// Jobs of the same script and slot make one call. The second list says which jobs are in which call.
fn group(batch: &[Sent]) -> (Vec<Call<'_>>, Vec<Vec<usize>>) {
    let mut calls: Vec<Call<'_>> = Vec::new();
    let mut slots: Vec<Option<u16>> = Vec::new();
    let mut places: Vec<Vec<usize>> = Vec::new();
    // Calls before this one are closed: another job in them would overtake one that has to come first.
    let mut first_open = 0;
    for (place, sent) in batch.iter().enumerate() {
        let slot = (!sent.terms.alone).then_some(sent.terms.slot);
        let shared = (first_open..calls.len()).find(|&at| {
            slot.is_some()
                && slots[at] == slot
                && (std::ptr::eq(calls[at].script, &*sent.script) || calls[at].script.sha() == sent.script.sha())
        });
        let at = shared.unwrap_or(calls.len());
        if shared.is_some() {
            calls[at].jobs.push(&sent.job);
            places[at].push(place);
        } else {
            calls.push(Call { script: &sent.script, jobs: vec![&sent.job] });
            slots.push(slot);
            places.push(vec![place]);
        }
        if sent.job.before_others {
            first_open = at;
        }
    }
    (calls, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(script: &Arc<Script>, before_others: bool) -> Sent {
        let terms = Terms { slot: 0, alone: false, deadline: Instant::now() };
        let mut job = Job::with_capacity(0);
        job.before_others = before_others;
        Sent { script: script.clone(), job, terms }
    }

    #[test]
    fn nothing_overtakes_a_job_that_comes_before_others() {
        let [check, any] = ["return 1", "return 2"].map(|source| Arc::new(Script::new(source)));
        let plain = [(&check, false), (&any, false), (&check, false)].map(|(script, first)| sent(script, first));
        assert_eq!(group(&plain).1, [vec![0, 2], vec![1]]);
        let ordered = [(&check, false), (&any, true), (&check, false), (&any, false), (&check, false)];
        let ordered = ordered.map(|(script, first)| sent(script, first));
        assert_eq!(group(&ordered).1, [vec![0], vec![1, 3], vec![2, 4]]);
    }

    #[test]
    fn in_a_lane_no_second_call_goes_out_beside_one_that_has_many_jobs() {
        let script = Arc::new(Script::new("return 1"));
        let waiting = || {
            let Sent { script, job, terms } = sent(&script, false);
            Some(Waiting { script, job, terms, answer: oneshot::channel().0 })
        };
        let queue = Queue::default();
        let add = |count: usize| {
            let mut state = queue.state.lock();
            state.places.extend((0..count).map(|_| waiting()));
            state.waiting += count;
        };
        let next = |done, is_lane| queue.next_or_leave(done, 64, is_lane).len();
        queue.state.lock().in_flight = 2;
        add(MANY - 1);
        assert_eq!(next(0, true), MANY - 1);
        add(1);
        assert_eq!(next(0, true), 1, "few are out");
        add(5);
        assert_eq!(next(1, true), 5);
        add(3);
        assert_eq!(next(5, true), 3, "seven are out in the other");
        add(4);
        assert_eq!(next(MANY - 1, true), 4, "three are");
        add(9);
        assert_eq!(next(3, true), 9);
        add(2);
        assert_eq!(next(4, true), 0, "nine are: this call is one too many");
        assert_eq!(queue.state.lock().in_flight, 1);
        assert_eq!(next(9, true), 2, "and the other takes what waited");
        add(PLENTY + 4);
        assert_eq!((next(2, true), next(PLENTY, true)), (PLENTY, 4), "some are left for the next");
        add(4 * PLENTY);
        assert_eq!(next(4, true), 2 * PLENTY);
    }
}
