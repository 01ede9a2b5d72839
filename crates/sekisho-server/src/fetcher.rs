//! The fetcher of a configuration.

mod pages;

use std::sync::Arc;

use sekisho::outbound::Outbound;
use sekisho::outbound::fetch::{FetchParts, FetchTerms, Fetcher, Guard, MemoryPages, Pages};

use crate::caches::Caches;
use crate::config::OutboundConfig;
use pages::CachedPages;

/// Kept for conditional requests, of all pages together, where no cache is named for them.
const KEPT: u64 = 64 << 20;

pub(crate) fn open(config: &OutboundConfig, outbound: &Outbound, caches: &Arc<Caches>) -> Fetcher {
    let max_bytes = config.max_bytes as u64;
    let terms = FetchTerms {
        agent: config.user_agent.clone(),
        max_wait: config.settings.max_wait,
        timeout: config.timeout,
        idle: config.timeout,
        max_bytes,
        max_file_bytes: config.max_file_bytes as u64,
        ..FetchTerms::default()
    };
    let guard = Guard::allowing(config.allow_addresses.iter().copied());
    let pages: Arc<dyn Pages> = match &config.cache {
        Some(name) => Arc::new(CachedPages::new(Arc::clone(caches), name.clone())),
        None => Arc::new(MemoryPages::new(KEPT)),
    };
    let parts = FetchParts { guard, pages: Some(pages), ..FetchParts::default() };
    Fetcher::new(outbound.clone(), terms, parts).expect("the configuration has checked who we say we are")
}
