//! Put and invalidate.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::engine::{Cache, Inner, Kept};
use super::form::Form;
use super::key::Key;
use super::origin::Fetched;
use super::owed::Debt;
use super::replay::Settled;
use crate::error::{Error, Invalid};

impl<F: Form> Cache<F> {
    /// Writes a value whatever is there. What is being fetched meanwhile does not replace it. It waits for the shared store no longer
    /// than a reading does: one that takes longer may have it yet, and until then it is kept here only.
    pub async fn put(&self, key: &Key, value: Fetched) -> Result<Kept, Error> {
        let inner = &self.inner;
        let decoded = inner.form.decode(&value.content).map_err(|reason| Invalid::new("content", reason))?;
        inner.forget(key);
        let (mut mark, validators) = (inner.copies.mark(key), value.validators.clone());
        let mut kept = Kept::HereOnly;
        if let Some(shared) = &inner.shared {
            let change = Change::begin(inner, key);
            let debt = Debt { at: change.at, is_unsure: true };
            let write = tokio::spawn(Arc::clone(inner).write(change, value));
            match timeout(shared.store.patience(), write).await {
                Ok(Ok(written)) => kept = written?,
                // Whether it crashed or takes long, nobody knows what became of it.
                Ok(Err(_)) | Err(_) => inner.owe(key, debt),
            }
            if kept == Kept::HereOnly {
                mark = inner.copies.mark(key);
            }
        }
        let held = inner.hold(key, Some(decoded), validators, Duration::ZERO, mark);
        inner.copies.keep(key, held, mark);
        inner.detach(key);
        Ok(kept)
    }

    /// Nobody is answered with what was there before, here from now on and elsewhere as soon as they have heard. An error
    /// means that the shared store, and with it other instances, may still have it; it is made up for when the store answers.
    pub async fn invalidate(&self, key: &Key) -> Result<(), Error> {
        let inner = &self.inner;
        inner.copies.forget(key);
        let result = match &inner.shared {
            Some(shared) => {
                let change = Change::begin(inner, key);
                let result = shared.store.invalidate(key).await;
                if result.is_ok() {
                    change.made();
                }
                result
            }
            None => Ok(()),
        };
        // What was read from the store before it went may have come in between.
        inner.forget(key);
        result
    }
}

impl<F: Form> Inner<F> {
    async fn write(self: Arc<Self>, mut change: Change<F>, value: Fetched) -> Result<Kept, Invalid> {
        let Some(shared) = &self.shared else { return Ok(Kept::HereOnly) };
        // An earlier one may be on its way still, and must not come after this one.
        if self.settle(shared, &change.key).await != Settled::Yes {
            return Ok(Kept::HereOnly);
        }
        let key = change.key.clone();
        let is_unsure = &mut change.is_unsure;
        let put = async {
            *is_unsure = true;
            match shared.store.put(&key, &value, self.terms.ages.keep_for).await {
                // It is the caller's mistake, and says nothing about the store.
                Err(Error::Invalid(invalid)) => Ok(Err(invalid)),
                Err(error) => {
                    *is_unsure = !matches!(error, Error::Unavailable { may_have_run: false, .. });
                    Err(error)
                }
                Ok(()) => Ok(Ok(())),
            }
        };
        match shared.writes.ask(&self.clock, put).await {
            None => Ok(Kept::HereOnly),
            Some(written) => {
                change.made();
                written.map(|()| Kept::Everywhere)
            }
        }
    }
}

/// A change that the shared store is asked to make. Unless it is known to be made it is owed, also when whoever asks goes away.
struct Change<F: Form> {
    inner: Arc<Inner<F>>,
    key: Key,
    at: u64,
    /// It may be written without anybody having said so.
    is_unsure: bool,
    is_made: bool,
}

impl<F: Form> Change<F> {
    fn begin(inner: &Arc<Inner<F>>, key: &Key) -> Self {
        let (at, inner) = (inner.clock.now(), Arc::clone(inner));
        Self { inner, key: key.clone(), at, is_unsure: false, is_made: false }
    }

    /// Or there is nothing to make, because it was refused for what it is.
    fn made(mut self) {
        self.is_made = true;
        self.inner.owed.made(&self.key, self.at);
    }
}

impl<F: Form> Drop for Change<F> {
    fn drop(&mut self) {
        let debt = Debt { at: self.at, is_unsure: self.is_unsure };
        // Whoever did not wait has noted it, and has kept what is newest here.
        if !self.is_made && !self.inner.owed.knows(&self.key, debt) {
            self.inner.owe(&self.key, debt);
        }
    }
}
