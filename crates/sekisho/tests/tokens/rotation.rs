//! Keys that an issuer publishes and changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use sekisho::clock::{ManualClock, Timestamp};
use sekisho::tokens::{Fetch, Fetched, Keys, Refusal};
use sekisho_testkit::jwt::{Signer, jwks};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Desk, ISS, NOW, good, issuer};

/// What an issuer publishes right now.
#[derive(Debug)]
struct Published {
    set: std::sync::Mutex<Result<String, String>>,
    asked: AtomicUsize,
    /// A fetch waits for a permit.
    open: Semaphore,
}

impl Published {
    fn new(set: Result<String, String>) -> Arc<Self> {
        let open = Semaphore::new(Semaphore::MAX_PERMITS);
        Arc::new(Self { set: std::sync::Mutex::new(set), asked: AtomicUsize::new(0), open })
    }

    fn publish(&self, set: Result<String, String>) {
        *self.set.lock().unwrap() = set;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Fetch for Published {
    fn fetch<'a>(&'a self, url: &'a str) -> Fetched<'a> {
        assert_eq!(url, "https://auth.example/jwks.json");
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            let _permit = self.open.acquire().await.expect("never closed");
            let set = self.set.lock().unwrap().clone();
            set.map(String::into_bytes)
        })
    }
}

fn desk(published: &Arc<Published>) -> (Desk, Arc<Keys>) {
    let clock = ManualClock::at(Timestamp::from_secs(NOW));
    let keys = Keys::fetched("https://auth.example/jwks.json", published.clone(), Arc::new(clock.clone()));
    (Desk::on(clock, vec![issuer(ISS, &["ES256"], keys.clone())]), keys)
}

#[tokio::test]
async fn a_new_key_is_fetched_when_a_token_names_it() {
    let (old, new) = (Signer::ec("ES256").named("old"), Signer::ec("ES256").named("new"));
    let published = Published::new(Ok(jwks(&[&old])));
    let (desk, _) = desk(&published);
    assert!(desk.verify(&old.token(&good())).await.is_ok());
    assert!(desk.verify(&old.token(&good())).await.is_ok());
    assert_eq!(published.asked(), 1, "known keys are not asked for");
    published.publish(Ok(jwks(&[&old, &new])));
    desk.clock.advance(Duration::from_secs(10));
    assert!(desk.verify(&new.token(&good())).await.is_ok());
    assert!(desk.verify(&old.token(&good())).await.is_ok());
    assert_eq!(published.asked(), 2);
}

#[tokio::test]
async fn c21_a53_a_flood_of_unknown_keys_asks_the_issuer_once() {
    let signer = Signer::ec("ES256").named("k");
    let published = Published::new(Ok(jwks(&[&signer])));
    let (desk, _) = desk(&published);
    let unknown = |n: usize| signer.token_with(&json!({ "kid": format!("unknown-{n}") }), &good());
    for n in 0..200 {
        assert_eq!(desk.refusal(&unknown(n)).await, Refusal::UnknownKey);
    }
    assert_eq!(published.asked(), 1);
    desk.clock.advance(Duration::from_secs(10));
    for n in 0..200 {
        assert_eq!(desk.refusal(&unknown(n)).await, Refusal::UnknownKey);
    }
    assert_eq!(published.asked(), 2);
    assert!(desk.verify(&signer.token(&good())).await.is_ok(), "others are served all the while");
}

#[tokio::test]
async fn many_that_wait_for_a_key_wait_for_one_fetch() {
    let signer = Signer::ec("ES256").named("k");
    let published = Published::new(Ok(jwks(&[&signer])));
    published.open.forget_permits(usize::MAX);
    let (desk, _) = desk(&published);
    let token = signer.token(&good());
    let opens = async {
        while published.asked() == 0 {
            tokio::task::yield_now().await;
        }
        published.open.add_permits(50);
    };
    let (answers, ()) = join(join_all((0..50).map(|_| desk.verify(&token))), opens).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(published.asked(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_fetch_with_it() {
    let signer = Signer::ec("ES256").named("k");
    let published = Published::new(Ok(jwks(&[&signer])));
    published.open.forget_permits(usize::MAX);
    let (desk, keys) = desk(&published);
    let token = signer.token(&good());
    // The first asks and goes away while the issuer has not answered.
    let left = tokio::time::timeout(Duration::from_millis(1), desk.verify(&token)).await;
    assert!(left.is_err());
    while published.asked() == 0 {
        tokio::task::yield_now().await;
    }
    published.open.add_permits(1);
    while keys.current().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(desk.verify(&token).await.is_ok());
    assert_eq!(published.asked(), 1);
}

#[tokio::test]
async fn the_last_keys_stay_when_a_fetch_fails() {
    let signer = Signer::ec("ES256").named("k");
    let published = Published::new(Ok(jwks(&[&signer])));
    let (desk, keys) = desk(&published);
    keys.keep_fresh().await;
    for broken in [Err("refused".to_owned()), Ok("<html>".to_owned()), Ok(json!({ "keys": [] }).to_string())] {
        published.publish(broken);
        desk.clock.advance(Duration::from_secs(300));
        let before = published.asked();
        keys.keep_fresh().await;
        assert_eq!(published.asked(), before + 1);
        let claims = json!({ "exp": NOW + 90_000 });
        assert!(desk.verify(&signer.token(&crate::support::good_but(&claims))).await.is_ok());
    }
}

#[tokio::test]
async fn a_key_that_is_withdrawn_is_forgotten() {
    let (old, new) = (Signer::ec("ES256").named("old"), Signer::ec("ES256").named("new"));
    let published = Published::new(Ok(jwks(&[&old])));
    let (desk, keys) = desk(&published);
    keys.keep_fresh().await;
    published.publish(Ok(jwks(&[&new])));
    desk.clock.advance(Duration::from_secs(299));
    keys.keep_fresh().await;
    assert!(desk.verify(&old.token(&good())).await.is_ok(), "a set is good for five minutes");
    desk.clock.advance(Duration::from_secs(1));
    keys.keep_fresh().await;
    assert_eq!(desk.refusal(&old.token(&good())).await, Refusal::UnknownKey);
}

#[tokio::test]
async fn without_any_keys_nobody_is_called_a_forger() {
    let signer = Signer::ec("ES256").named("k");
    let published = Published::new(Err("refused".to_owned()));
    let (desk, _) = desk(&published);
    for _ in 0..3 {
        let refusal = desk.refusal(&signer.token(&good())).await;
        assert!(matches!(refusal, Refusal::Unavailable(_)), "{refusal}");
    }
    assert_eq!(published.asked(), 1);
    published.publish(Ok(jwks(&[&signer])));
    desk.clock.advance(Duration::from_secs(10));
    assert!(desk.verify(&signer.token(&good())).await.is_ok());
}
