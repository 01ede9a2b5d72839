//! Which instances are asked, as a load balancer knows it: one that says that it is about to stop is left before it does, and
//! one that is gone is tried again when it answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::header::CONNECTION;

use super::client::{Client, Missing};
use super::question;

/// How often each instance is asked whether it is ready: several times within the time that it gives (`connections.drain`).
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Rotation(Vec<AtomicBool>);

impl Rotation {
    /// All of them are in.
    pub(super) fn of(instances: usize) -> Rotation {
        Rotation((0..instances).map(|_| AtomicBool::new(true)).collect())
    }

    pub(super) fn has(&self, instance: usize) -> bool {
        self.0[instance].load(Ordering::Relaxed)
    }

    /// Whom to ask, beginning with one: those that are in, and then the others, for it is better to be refused than not to ask.
    pub(super) fn from(&self, first: usize) -> Vec<usize> {
        let count = self.0.len();
        let (mut order, others): (Vec<usize>, Vec<usize>) =
            (0..count).map(|step| (first + step) % count).partition(|instance| self.has(*instance));
        order.extend(others);
        order
    }

    /// What an answer to any question says about its instance.
    pub(super) fn note(&self, instance: usize, answer: &Result<Response<Bytes>, Missing>) {
        let is_leaving = match answer {
            Ok(answer) => answer.headers().get(CONNECTION).is_some_and(|value| value == "close"),
            // One that is slow is still there.
            Err(missing) => *missing == Missing::Refused,
        };
        if is_leaving {
            self.0[instance].store(false, Ordering::Relaxed);
        }
    }

    /// Asks one whether it is ready, until `is_over`.
    pub(super) async fn watch(&self, instance: usize, port: u16, is_over: &AtomicBool) {
        let mut client = Client::new(port);
        while !is_over.load(Ordering::Relaxed) {
            let answer = client.send(&question::get("/readyz", ("accept", "application/json"))).await;
            self.note(instance, &answer);
            // One that is not ready for another reason is not about to go: what it then answers is what is measured.
            match answer.map(|answer| answer.status().as_u16()) {
                Ok(200) => self.0[instance].store(true, Ordering::Relaxed),
                // Nobody asks who cannot even say how it is.
                Err(Missing::TimedOut) => self.0[instance].store(false, Ordering::Relaxed),
                Ok(_) | Err(_) if !self.has(instance) => client.close(),
                _ => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_that_it_goes_is_asked_last_and_who_is_slow_is_not() {
        let rotation = Rotation::of(3);
        assert_eq!(rotation.from(1), [1, 2, 0]);
        let closing = Response::builder().header(CONNECTION, "close").body(Bytes::new()).unwrap();
        rotation.note(2, &Ok(closing));
        rotation.note(0, &Err(Missing::TimedOut));
        assert_eq!(rotation.from(1), [1, 0, 2]);
        rotation.note(0, &Err(Missing::Refused));
        rotation.note(1, &Err(Missing::Refused));
        assert_eq!(rotation.from(1), [1, 2, 0], "all of them are as good as any");
    }
}
