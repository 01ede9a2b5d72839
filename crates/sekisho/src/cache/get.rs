//! A get, up to where memory answers it.
//!
//! It is a future by hand, and not an `async fn`: so the answer of a hit is made where the caller wants it, and is not carried there
//! through three places in memory, which took longer than to find it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::engine::{Answer, Cache, Freshness, Tier, Unanswered};
use super::form::Form;
use super::key::Key;
use super::value::Held;

type Result<F> = std::result::Result<Answer<<F as Form>::Value>, Unanswered>;

/// What [`Cache::get`] returns.
#[must_use = "a future does nothing before it is awaited"]
pub struct Get<'a, F: Form> {
    cache: &'a Cache<F>,
    key: &'a Key,
    /// Where memory has no answer.
    afar: Option<Pin<Box<dyn Future<Output = Result<F>> + Send + 'a>>>,
}

impl<F: Form> Cache<F> {
    /// The value, from the first tier that has it fresh. It waits at most for the shared store and for the origin, each no
    /// longer than its time-out.
    #[inline]
    pub fn get<'a>(&'a self, key: &'a Key) -> Get<'a, F> {
        Get { cache: self, key, afar: None }
    }
}

impl<F: Form> Future for Get<'_, F> {
    type Output = Result<F>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = &self.cache.inner;
        let held = if self.afar.is_none() { inner.copies.get(self.key) } else { None };
        let now = inner.clock.now();
        match held {
            Some(held) if now < held.good_until() && inner.has_missed_nothing(&held, now) => {
                let born = held.born();
                Poll::Ready(Ok(inner.answer_value(
                    self.key,
                    held.into_good(),
                    born,
                    Tier::Memory,
                    Freshness::Fresh,
                    now,
                )))
            }
            Some(held) if held.is_missing() && inner.is_fresh(&held, now) => {
                let age = Duration::from_micros(now.saturating_sub(held.born()));
                Poll::Ready(Ok(Answer { value: None, tier: Tier::Memory, age, freshness: Freshness::Fresh }))
            }
            held => self.look_further(held, now, context).map(|answer| *answer),
        }
    }
}

impl<F: Form> Get<'_, F> {
    /// What is here may be believed for some seconds after changes were last heard of. Boxed: an answer that is handed over in memory here
    /// would be so on a hit as well, by stores that the next load has to wait for.
    #[cold]
    fn look_further(
        &mut self,
        held: Option<Held<F::Value>>,
        now: u64,
        context: &mut Context<'_>,
    ) -> Poll<Box<Result<F>>> {
        let (cache, key) = (self.cache, self.key);
        let inner = &cache.inner;
        let answer = match (&mut self.afar, held) {
            (Some(afar), _) => afar.as_mut().poll(context),
            (None, Some(held)) if inner.is_fresh(&held, now) => {
                Poll::Ready(Ok(inner.answer(key, held, Tier::Memory, Freshness::Fresh, now)))
            }
            (afar, held) => afar.insert(Box::pin(cache.get_from_afar(key, held, now))).as_mut().poll(context),
        };
        answer.map(Box::new)
    }
}

impl<F: Form> fmt::Debug for Get<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get").field("key", self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::form::Raw;
    use crate::cache::origin::{Origin, OriginFuture, Reply, Validators};
    use crate::cache::{Terms, Tiers};
    use crate::clock::ManualClock;

    /// Has `there`, and nothing else.
    #[derive(Debug)]
    struct Half;

    impl Origin for Half {
        fn fetch<'a>(&'a self, key: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
            let reply = if key.as_str() == "there" { Reply::Fetched(vec![7].into()) } else { Reply::Missing };
            Box::pin(async { Ok(reply) })
        }
    }

    #[tokio::test]
    async fn what_is_at_hand_allocates_nothing_be_it_a_value_or_that_there_is_none() {
        let tiers = Tiers { origin: Some(Arc::new(Half)), ..Tiers::default() };
        let cache = Cache::new("half", Raw, Terms::default(), tiers, Arc::new(ManualClock::default())).unwrap();
        for (name, expected) in [("there", Some(vec![7])), ("not", None)] {
            let key = Key::new(name).unwrap();
            assert_eq!(cache.get(&key).await.unwrap().tier, Tier::Origin);
            let mut answer = None;
            let mut get = cache.get(&key);
            let mut context = Context::from_waker(std::task::Waker::noop());
            let used = allocation_counter::measure(|| answer = Some(Pin::new(&mut get).poll(&mut context)));
            let Some(Poll::Ready(Ok(answer))) = answer else { panic!("{name} was not at hand") };
            assert_eq!((answer.tier, answer.value.as_deref()), (Tier::Memory, expected.as_ref()));
            assert_eq!(used.count_total, 0, "{name}: {used:?}");
        }
    }
}
