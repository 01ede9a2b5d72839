//! Whether the Redis of sessions may throw them away to make room, asked now and then: its settings can change while it runs.

use std::time::Duration;

use crate::live::Live;

const EVERY: Duration = Duration::from_secs(10);

/// Goes on until it is dropped.
pub(crate) async fn watch(live: &Live) {
    let mut is_warned = false;
    loop {
        let app = live.app();
        match app.sessions.may_evict().await {
            Ok(may_evict) => {
                if may_evict && !is_warned {
                    tracing::warn!(
                        "the redis of sessions may evict, so that sessions are lost and ended ones can come back; set \
                         maxmemory-policy noeviction"
                    );
                }
                is_warned = may_evict;
                app.metrics.sessions_may_be_evicted(may_evict);
            }
            // Not every user may ask, and `/readyz` says whether it answers at all.
            Err(error) => tracing::debug!(%error, "whether sessions may be evicted is not known"),
        }
        drop(app);
        tokio::time::sleep(EVERY).await;
    }
}
