//! Who is connected, and how they are asked to leave.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};

use tokio::sync::watch;
use tokio::task::unconstrained;

/// All of them.
#[derive(Debug)]
pub(crate) struct Guests {
    is_told: Arc<AtomicBool>,
    told: watch::Sender<()>,
}

impl Guests {
    pub(crate) fn new() -> Self {
        Self { is_told: Arc::default(), told: watch::Sender::new(()) }
    }

    pub(crate) fn enter(&self) -> Guest {
        let mut told = self.told.subscribe();
        // It is asked once: then it has to listen, whatever its task has done in this turn.
        let told = Box::pin(unconstrained(async move {
            let _ = told.changed().await;
            told
        }));
        Guest { is_told: Arc::clone(&self.is_told), told: Told::Asked(told), is_listening: false }
    }

    pub(crate) fn count(&self) -> usize {
        self.told.receiver_count()
    }

    /// Asks them to leave once they have what they asked for, and waits until they have.
    pub(crate) async fn see_out(self) {
        self.is_told.store(true, SeqCst);
        self.told.send_replace(());
        self.told.closed().await;
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    is_told: Arc<AtomicBool>,
    told: Told,
    is_listening: bool,
}

enum Told {
    Asked(Pin<Box<dyn Future<Output = watch::Receiver<()>> + Send>>),
    /// It counts for as long as it is kept.
    Heard {
        _guest: watch::Receiver<()>,
    },
}

impl Guest {
    /// Ready once it should leave. One task asks, and is woken by what it asked first: after that, asking costs a look.
    pub(crate) fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_listening && !self.is_told.load(SeqCst) {
            return Poll::Pending;
        }
        self.is_listening = true;
        if let Told::Asked(told) = &mut self.told {
            match told.as_mut().poll(cx) {
                Poll::Ready(guest) => self.told = Told::Heard { _guest: guest },
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// What is waited for before anything was asked. None if it should leave first.
    pub(crate) async fn unless_told<F: Future>(&mut self, begins: F) -> Option<F::Output> {
        let mut begins = pin!(begins);
        std::future::poll_fn(|cx| match begins.as_mut().poll(cx) {
            Poll::Ready(begun) => Poll::Ready(Some(begun)),
            Poll::Pending => self.poll_told(cx).map(|()| None),
        })
        .await
    }

    /// Sees a connection to its end, and tells it when it should come to one.
    pub(crate) async fn attend<C: Future>(mut self, connection: C, leave: impl FnOnce(Pin<&mut C>)) -> C::Output {
        let (mut connection, mut leave) = (pin!(connection), Some(leave));
        std::future::poll_fn(|cx| {
            // It looks at what has come before it is told: of a request that is there it owes the answer.
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if leave.is_some()
                && self.poll_told(cx).is_ready()
                && let Some(leave) = leave.take()
            {
                leave(connection.as_mut());
                return connection.as_mut().poll(cx);
            }
            Poll::Pending
        })
        .await
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Asked(_) => "Asked",
            Self::Heard { .. } => "Heard",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_woken_and_counts_until_it_has_gone() {
        let guests = Guests::new();
        let (mut waiting, mut late) = (guests.enter(), guests.enter());
        assert_eq!(guests.count(), 2);
        let (heard, hears) = tokio::sync::oneshot::channel();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            poll_fn(|cx| waiting.poll_told(cx)).await;
            heard.send(()).unwrap();
            gone.await.unwrap();
            drop(waiting);
        });
        tokio::task::yield_now().await;
        let mut out = pin!(guests.see_out());
        tokio::select! {
            biased;
            () = &mut out => panic!("both are there"),
            told = hears => told.unwrap(),
        }
        poll_fn(|cx| late.poll_told(cx)).await;
        poll_fn(|cx| late.poll_told(cx)).await;
        drop(late);
        tokio::select! {
            biased;
            () = &mut out => panic!("one is there"),
            () = tokio::task::yield_now() => {}
        }
        go.send(()).unwrap();
        out.await;
    }

    #[tokio::test]
    async fn a_connection_is_told_once() {
        let guests = Guests::new();
        let (leave, told) = tokio::sync::oneshot::channel();
        let guest = guests.enter();
        let attended = tokio::spawn(guest.attend(std::future::ready(()), |_| ()));
        attended.await.unwrap();
        let connection = async move { told.await.is_ok() };
        let attended = tokio::spawn(guests.enter().attend(connection, move |_| leave.send(()).unwrap()));
        tokio::task::yield_now().await;
        guests.see_out().await;
        assert!(attended.await.unwrap());
    }
}
