//! The counts of keys for Prometheus, taken now and then: a scrape must never walk the store.

use std::time::Duration;

use sekisho::keyspace::Budget;

use crate::live::Live;

const EVERY: Duration = Duration::from_secs(5 * 60);
/// A server that has just started has better things to do.
const FIRST_AFTER: Duration = Duration::from_secs(30);

/// Goes on until it is dropped.
pub(crate) async fn keep(live: &Live) {
    tokio::time::sleep(FIRST_AFTER).await;
    loop {
        let app = live.app();
        match app.backend.keys.survey(Budget::default()).await {
            Ok(survey) => app.metrics.counted(&survey),
            Err(error) => tracing::debug!(%error, "the keys could not be counted"),
        }
        drop(app);
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use sekisho::backend::Backend;

    use super::*;
    use crate::app::App;
    use crate::config::Config;

    #[tokio::test(start_paused = true)]
    async fn keys_are_counted_without_a_scrape() {
        let config = Config::parse("test.yaml", "{}").unwrap();
        let backend = Backend::memory(config.memory);
        let live = Live::new(App::new(config, backend).unwrap()).unwrap();
        let rendered = || live.app().metrics.rendered();
        assert!(!rendered().contains("sekisho_keys{"));
        tokio::time::timeout(FIRST_AFTER + Duration::from_secs(1), keep(&live)).await.unwrap_err();
        assert!(rendered().contains("sekisho_keys{category=\"session\"} 0"), "{}", rendered());
    }
}
