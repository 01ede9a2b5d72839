//! Lets a test decide which of several processes makes its next call to Redis, and which never makes another.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

use super::RedisStore;

/// Calls of one process, let through one at a time.
#[derive(Debug)]
pub struct Steps {
    turns: Semaphore,
    done: Notify,
}

impl Default for Steps {
    fn default() -> Self {
        Self { turns: Semaphore::new(0), done: Notify::new() }
    }
}

impl Steps {
    /// Lets one call through. [`done`](Self::done) says when it has its answer.
    pub fn allow_one(&self) {
        self.turns.add_permits(1);
    }

    pub async fn done(&self) {
        self.done.notified().await;
    }

    /// Makes a call when its turn has come.
    pub async fn one<T>(&self, call: impl Future<Output = T>) -> T {
        if let Ok(turn) = self.turns.acquire().await {
            turn.forget();
        }
        let answer = call.await;
        self.done.notify_one();
        answer
    }
}

impl RedisStore {
    /// The same store, with each call waiting for its turn.
    #[must_use]
    pub fn in_steps(&self, steps: Arc<Steps>) -> Self {
        Self { steps: Some(steps), ..self.clone() }
    }
}
