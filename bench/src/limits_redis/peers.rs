//! Peers on the same server: limitador in this process, Python's `limits` in one of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Bench, LASTS, SUBJECTS};

impl Bench {
    /// limitador's check and update of one counter, 20 a minute; nothing where it is not built in.
    #[cfg(feature = "limitador-redis")]
    pub(super) async fn limitador(&self, tasks: usize) -> Option<f64> {
        use std::sync::Arc;

        use limitador::AsyncRateLimiter;
        use limitador::storage::redis::AsyncRedisStorage;

        use crate::limits_memory::{limitador_context, limitador_limit};

        let storage = AsyncRedisStorage::new(&self.url).await.unwrap();
        let limiter = Arc::new(AsyncRateLimiter::new_with_storage(Box::new(storage)));
        limiter.add_limit(limitador_limit(20, 60));
        let (subjects, sequence) = (self.subjects.clone(), self.sequence.clone());
        let rate = super::rate(tasks, move |i| {
            let (limiter, subject) = (limiter.clone(), super::pick(&subjects, &sequence, i));
            async move {
                let context = limitador_context(subject.as_str());
                let checked = limiter.check_rate_limited_and_update(&"bench".into(), &context, 1).await.unwrap();
                // A limit that does not apply would be answered without asking Redis.
                assert_eq!(checked.counters.len(), 1);
            }
        });
        Some(rate.await)
    }

    #[cfg(not(feature = "limitador-redis"))]
    #[allow(clippy::unused_async, reason = "called as the one that is built in")]
    pub(super) async fn limitador(&self, _tasks: usize) -> Option<f64> {
        None
    }

    /// Both rules by `limits`, with tasks of asyncio or with threads; nothing where xtask has not installed it.
    pub(super) fn python(&self, way: &str, tasks: usize) -> Option<f64> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = here.parent()?.join("target/tools/python/bin/python");
        if !python.exists() {
            return None;
        }
        let mut command = Command::new(python);
        command.arg(here.join("python/limits_redis.py")).args([&self.url, way]);
        command.args([tasks.to_string(), SUBJECTS.to_string(), LASTS.as_secs_f64().to_string()]);
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "limits_redis.py failed: {}", output.status);
        Some(String::from_utf8_lossy(&output.stdout).trim().parse().unwrap())
    }
}
