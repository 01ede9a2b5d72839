//! A reservation that the handler can look at, and that ends with the answer.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Invalid};
use crate::limits::{Admission, Cost, Decision};

/// What was reserved for a request, in its extensions. Where layers are nested it is that of the innermost.
///
/// It is the layer that owns the reservation: clones that outlive the answer keep nothing open.
#[derive(Debug, Clone)]
pub struct Admitted(Arc<Mutex<Option<Admission>>>);

impl Admitted {
    /// What the request really cost: settled in place of what was reserved, also if the client has left by then. The last
    /// word counts, and it may still come while the body of the answer is sent. Units left out stay as reserved.
    pub fn spent(&self, actual: &Cost) -> Result<(), Error> {
        match self.0.lock().as_mut() {
            Some(admission) => admission.sent_at(actual),
            None => {
                Err(Invalid::new("cost", "comes too late: the answer has ended, and its reservation with it").into())
            }
        }
    }

    /// The figures, until the answer has ended.
    pub fn decision(&self) -> Option<Decision> {
        self.0.lock().as_ref().map(|admission| admission.decision().clone())
    }
}

/// The layer's own end of it. Dropped, it settles: at the end of the answer, or when the client leaves.
#[derive(Debug)]
pub(super) struct Hold(Admitted);

impl Hold {
    /// The service is about to be called.
    pub(super) fn of(mut admission: Admission) -> Self {
        admission.sent();
        Self(Admitted(Arc::new(Mutex::new(Some(admission)))))
    }

    pub(super) fn shared(&self) -> Admitted {
        self.0.clone()
    }

    pub(super) fn look(&self, at: impl FnOnce(&Decision)) {
        if let Some(admission) = self.0.0.lock().as_ref() {
            at(admission.decision());
        }
    }

    /// A failure here is the store's: the drop has asked it once more, and the lease watches over the rest.
    pub(super) async fn release(self) {
        let admission = self.0.0.lock().take();
        if let Some(admission) = admission
            && let Err(error) = admission.release().await
        {
            tracing::warn!(%error, "what was reserved could not be given back yet");
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let admission = self.0.0.lock().take();
        // The lock is open again: a store must not be asked behind it.
        drop(admission);
    }
}
