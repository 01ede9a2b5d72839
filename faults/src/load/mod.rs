//! Clients of all instances: connections that are kept, each asking when its turn comes.
//!
//! One thread, because clients and servers share the machine.

mod client;
mod mix;
mod people;
mod question;
mod rotation;

pub(crate) use mix::{HOT, Mix, OTHERS, SUBJECTS};
pub(crate) use people::jti;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use self::client::{Client, Missing};
use self::people::People;
use self::question::{Question, SETTLED};
use self::rotation::Rotation;
use crate::clock::now;
use crate::ledger::{Entry, Label, Ledger, Op, Outcome};
use crate::rig::{Instance, Rig};

/// So many that a connection that waits for a deadline holds up no other question.
pub(crate) const CONNECTIONS: usize = 12;
/// How long a reservation is held before it is settled.
const HOLD: Duration = Duration::from_millis(5);

pub(crate) struct Load {
    pub(crate) ledger: Ledger,
    shared: Arc<Shared>,
    people: Arc<People>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    instances: Vec<Arc<Instance>>,
    rotation: Rotation,
    wheel: Vec<(Op, usize)>,
    next: AtomicUsize,
    reservations: AtomicU64,
    /// Connections that were refused, each of which another instance took.
    refused: AtomicU64,
    is_over: AtomicBool,
    /// Nobody asks, and no connection is kept.
    is_paused: AtomicBool,
    gap: Duration,
}

impl Load {
    pub(crate) fn start(rig: &Rig, mix: Mix, seed: u64) -> Result<Load> {
        let people = Arc::new(People::of(rig, &mix)?);
        let instances = rig.instances.clone();
        let gap = Duration::from_secs_f64((CONNECTIONS * instances.len()) as f64 / mix.per_second());
        let shared = Arc::new(Shared {
            rotation: Rotation::of(instances.len()),
            instances,
            wheel: mix.wheel(seed),
            next: AtomicUsize::new(0),
            reservations: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            gap,
        });
        let ledger = Ledger::default();
        let (own, own_people, own_ledger) = (Arc::clone(&shared), Arc::clone(&people), ledger.clone());
        let thread = std::thread::spawn(move || run(&own, &own_people, &own_ledger));
        Ok(Load { ledger, shared, people, thread: Some(thread) })
    }

    /// Everybody gets a new session, since the old ones are lost.
    pub(crate) fn sign_in(&self, rig: &Rig) -> Result<()> {
        self.people.sign_in(rig)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Lets what was asked be answered, and asks nothing more until told.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Lets what was asked be answered, and ends.
    pub(crate) fn stop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load does not panic");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Arc<Shared>, people: &Arc<People>, ledger: &Ledger) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let count = CONNECTIONS * shared.instances.len();
        let tasks: Vec<_> = (0..count)
            .map(|number| {
                let connection = Connection::new(Arc::clone(shared), Arc::clone(people), ledger.clone(), number);
                let offset = shared.gap.mul_f64(number as f64 / count as f64);
                tokio::spawn(connection.run(offset))
            })
            .collect();
        for (number, instance) in shared.instances.iter().enumerate() {
            let (shared, port) = (Arc::clone(shared), instance.gateway());
            tokio::spawn(async move { shared.rotation.watch(number, port, &shared.is_over).await });
        }
        for task in tasks {
            task.await.expect("no connection panics");
        }
    });
}

/// A client of one instance, which goes to another while that one is not in the rotation, or refuses it.
struct Connection {
    shared: Arc<Shared>,
    people: Arc<People>,
    ledger: Ledger,
    instance: usize,
    api: Vec<Client>,
    gateway: Vec<Client>,
}

#[derive(Clone, Copy)]
enum Door {
    Api,
    Gateway,
}

impl Connection {
    fn new(shared: Arc<Shared>, people: Arc<People>, ledger: Ledger, number: usize) -> Connection {
        let api = shared.instances.iter().map(|instance| Client::new(instance.api())).collect();
        let gateway = shared.instances.iter().map(|instance| Client::new(instance.gateway())).collect();
        let instance = number % shared.instances.len();
        Connection { shared, people, ledger, instance, api, gateway }
    }

    async fn run(mut self, offset: Duration) {
        let mut due = now() + offset;
        while !self.shared.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(due.saturating_sub(now())).await;
            if self.shared.is_paused.load(Ordering::Relaxed) {
                self.api.iter_mut().chain(&mut self.gateway).for_each(Client::close);
                due = now() + self.shared.gap;
                continue;
            }
            // What was missed while an answer was late is made up for, but not for longer than a second.
            due = (due + self.shared.gap).max(now().saturating_sub(Duration::from_secs(1)));
            let turn = self.shared.next.fetch_add(1, Ordering::Relaxed);
            let (op, subject) = self.shared.wheel[turn % self.shared.wheel.len()];
            match op {
                Op::Reserve => self.reserve_and_settle(subject).await,
                Op::Pass | Op::Token => {
                    let question = if op == Op::Pass { people::pass(subject) } else { self.people.show(subject) };
                    self.ask(Door::Gateway, op, subject, &question).await;
                }
                Op::Session => self.ask(Door::Api, op, subject, &self.people.session(subject)).await.map_or((), drop),
                Op::Idle => self.ask(Door::Gateway, op, subject, &people::livez()).await.map_or((), drop),
                Op::Cache => self.ask(Door::Api, op, subject, &people::tile(subject)).await.map_or((), drop),
                Op::Check | Op::Settle => {
                    self.ask(Door::Api, Op::Check, subject, &question::check(subject)).await;
                }
            }
        }
    }

    async fn reserve_and_settle(&mut self, subject: usize) {
        let id = self.shared.reservations.fetch_add(1, Ordering::Relaxed);
        let Some(reserved) = self.ask(Door::Api, Op::Reserve, subject, &question::reserve(subject, id)).await else {
            return;
        };
        tokio::time::sleep(HOLD).await;
        self.ask(Door::Api, Op::Settle, subject, &question::settle(&reserved["reservation"])).await;
    }

    /// Keeps no connection to who is not asked any more.
    fn leave(&mut self) {
        for instance in (0..self.api.len()).filter(|instance| !self.shared.rotation.has(*instance)) {
            self.api[instance].close();
            self.gateway[instance].close();
        }
    }

    /// The answer to what was admitted.
    async fn ask(&mut self, door: Door, op: Op, subject: usize, question: &Question) -> Option<Value> {
        self.leave();
        let mut entry = None;
        for instance in self.shared.rotation.from(self.instance) {
            let client = match door {
                Door::Api => &mut self.api[instance],
                Door::Gateway => &mut self.gateway[instance],
            };
            let sent = now();
            let answer = client.send(question).await;
            self.shared.rotation.note(instance, &answer);
            let outcome = question::outcome(op, &answer);
            let amount = match (op, outcome) {
                (Op::Settle, Outcome::Admitted) => SETTLED,
                (Op::Check | Op::Pass, Outcome::Admitted) => 1,
                _ => 0,
            };
            let label = answer.as_ref().map_or(Label::Shared, question::label);
            entry = Some((Entry { sent, done: now(), instance, subject, op, outcome, label, amount }, answer));
            if !matches!(entry, Some((_, Err(Missing::Refused)))) {
                break;
            }
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        let (entry, answer) = entry?;
        self.ledger.write(entry);
        let answer = answer.ok().filter(|_| entry.outcome == Outcome::Admitted)?;
        serde_json::from_slice(answer.body()).ok()
    }
}
