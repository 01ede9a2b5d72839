//! tower-sessions with its own Redis store, on the same server.

use std::sync::Arc;

use sekisho_testkit::RedisServer;
use tower_sessions::SessionStore as _;
use tower_sessions::cookie::time::{Duration, OffsetDateTime};
use tower_sessions::session::{Id, Record};
use tower_sessions_redis_store::RedisStore;
use tower_sessions_redis_store::fred::prelude::{ClientLike as _, Config, Pool};

use super::members;
use crate::limits_redis::rate;

pub(super) struct Peer {
    store: RedisStore<Pool>,
    records: Arc<Vec<Record>>,
}

impl Peer {
    /// Its documentation takes a pool of six connections.
    pub(super) async fn connect(server: &RedisServer, connections: usize) -> anyhow::Result<Self> {
        let pool = Pool::new(Config::from_url(&server.url())?, None, None, None, connections)?;
        pool.init().await?;
        Ok(Self { store: RedisStore::new(pool), records: Arc::default() })
    }

    /// The same members as ours under ids of its own.
    pub(super) async fn fill(&mut self, sessions: usize) -> anyhow::Result<()> {
        let mut records = Vec::with_capacity(sessions);
        for number in 0..sessions {
            let data = members(&super::store::user(number), number).into_iter().collect();
            let expiry_date = OffsetDateTime::now_utc() + Duration::hours(1);
            let mut record = Record { id: Id::default(), data, expiry_date };
            self.store.create(&mut record).await?;
            records.push(record);
        }
        self.records = Arc::new(records);
        Ok(())
    }

    pub(super) fn share(&mut self, filled: &Self) {
        self.records = Arc::clone(&filled.records);
    }

    pub(super) async fn get(&self, tasks: usize, order: &Arc<Vec<u32>>) -> f64 {
        let (store, records, order) = (self.store.clone(), Arc::clone(&self.records), Arc::clone(order));
        rate(tasks, move |i| {
            let (store, records, at) = (store.clone(), Arc::clone(&records), order[i % order.len()] as usize);
            async move {
                let found = store.load(&records[at].id).await.unwrap();
                assert!(found.is_some_and(|record| record.id == records[at].id));
            }
        })
        .await
    }

    pub(super) async fn save(&self, tasks: usize, order: &Arc<Vec<u32>>) -> f64 {
        let (store, records, order) = (self.store.clone(), Arc::clone(&self.records), Arc::clone(order));
        rate(tasks, move |i| {
            let (store, records, at) = (store.clone(), Arc::clone(&records), order[i % order.len()] as usize);
            async move { store.save(&records[at]).await.unwrap() }
        })
        .await
    }
}
