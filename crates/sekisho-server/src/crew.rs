//! Threads that serve connections, each with a runtime of its own.
//!
//! A connection stays on the thread that it was given to, and what its requests use is kept there too (`hand`): one thread
//! waits for its events and handles them, so that no request is passed from core to core on its way. Whatever runs besides
//! (the store's connections, workers, upkeep) belongs to the runtime of whoever started the server.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use sekisho::store::redis::keep_to_this_thread;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

thread_local! {
    static HAND: Cell<usize> = const { Cell::new(0) };
}

/// Which thread of its crew this is; 0 for those of no crew.
pub(crate) fn hand() -> usize {
    HAND.get()
}

/// Who serves connections.
#[derive(Debug, Default)]
pub struct Crew {
    /// None: the runtime that accepts them.
    hands: Vec<Hand>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Hand {
    runtime: Handle,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<()>,
}

impl Crew {
    /// As many threads as there are cores. With one core they would only take turns with those that are there.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let hands = if cores > 1 { (0..cores).map(Hand::start).collect::<io::Result<_>>()? } else { Vec::new() };
        Ok(Self { hands, next: AtomicUsize::new(0) })
    }

    /// Where they are served, besides the runtime that accepts them.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = Handle> {
        self.hands.iter().map(|hand| hand.runtime.clone())
    }

    /// Has a connection served, by the threads in turn.
    pub(crate) fn serve<F>(&self, stream: TcpStream, serve: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(last) = self.hands.len().checked_sub(1) else {
            tokio::spawn(serve(stream));
            return;
        };
        let hand = &self.hands[self.next.fetch_add(1, Relaxed) % (last + 1)];
        // Its events come to the thread that registers it.
        match stream.into_std() {
            Ok(stream) => drop(hand.runtime.spawn(async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => serve(stream).await,
                    Err(error) => tracing::debug!(%error, "a connection could not be handed over"),
                }
            })),
            Err(error) => tracing::debug!(%error, "a connection could not be handed over"),
        }
    }
}

impl Hand {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name(format!("serve-{number}")).spawn(move || {
            HAND.set(number);
            keep_to_this_thread();
            // Whether it was told or whoever could tell is gone is the same.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { runtime: handle, _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn connections_are_served_by_every_hand_in_turn() {
        let crew =
            Crew { hands: (0..3).map(|number| Hand::start(number).unwrap()).collect(), next: AtomicUsize::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (seen, mut served) = mpsc::unbounded_channel();
        for _ in 0..6 {
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let seen = seen.clone();
            crew.serve(stream, async move |stream| {
                assert_eq!(stream.peer_addr().unwrap(), peer);
                seen.send((hand(), thread::current().id())).unwrap();
            });
            drop(client);
        }
        let mut threads = Vec::new();
        for _ in 0..6 {
            threads.push(served.recv().await.unwrap());
        }
        let distinct: HashSet<_> = threads.iter().collect();
        assert_eq!(distinct.len(), 3, "{threads:?}");
        assert!(threads.iter().all(|(_, id)| *id != thread::current().id()));
    }

    /// It unwinds its own task: the thread goes on with the others.
    #[tokio::test]
    async fn f45_a_panic_ends_its_own_connection_and_no_other() {
        let crew = Crew { hands: vec![Hand::start(0).unwrap()], next: AtomicUsize::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connect = async || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (client, listener.accept().await.unwrap().0)
        };
        let (told, mut served) = mpsc::unbounded_channel();
        let (before, other) = connect().await;
        let (go, gone) = oneshot::channel::<()>();
        let tell = told.clone();
        crew.serve(other, async move |_stream| {
            gone.await.unwrap();
            tell.send("one from before").unwrap();
        });
        let (mut client, stream) = connect().await;
        crew.serve(stream, async move |_stream| panic!("as a handler would"));
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "it is closed");
        go.send(()).unwrap();
        assert_eq!(served.recv().await, Some("one from before"));
        let (after, stream) = connect().await;
        crew.serve(stream, async move |_stream| told.send("one after it").unwrap());
        assert_eq!(served.recv().await, Some("one after it"));
        drop((before, after));
    }

    #[tokio::test]
    async fn without_hands_the_runtime_that_accepts_serves() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (seen, mut served) = mpsc::unbounded_channel();
        Crew::default().serve(stream, async move |_| seen.send(thread::current().id()).unwrap());
        assert_eq!(served.recv().await, Some(thread::current().id()));
    }
}
