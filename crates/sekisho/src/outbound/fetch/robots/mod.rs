//! robots.txt: what a site asks of robots, and how long that is believed.

pub(crate) mod rules;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::Serialize;
use tokio::time::Instant;
use url::Url;

pub(super) use rules::{MAX_BYTES, Rules, product_token};

/// The RFC: not longer than a day.
const BELIEVED_FOR: Duration = Duration::from_secs(86_400);
/// A site that had trouble gets another chance soon.
const UNREADABLE_FOR: Duration = Duration::from_secs(600);
/// Of all files together, about.
const ROOM: u64 = 64 << 20;
/// At least so many are followed, by the RFC.
pub(super) const MAX_REDIRECTS: usize = 5;

/// What is known of a robots.txt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RobotsState {
    /// It has rules, or says that there are none.
    Rules,
    /// There is none, so all is allowed.
    Absent,
    /// The server has trouble, so nothing is allowed.
    Unreadable,
}

#[derive(Debug, Clone)]
pub(super) enum Robots {
    Rules(Arc<Rules>),
    Absent,
    /// In words, why.
    Unreadable(Arc<str>),
}

impl Robots {
    /// By the RFC: what is not there forbids nothing, a server in trouble everything. A 429 is trouble, though its number
    /// says otherwise: whoever asks for less does not mean that all may be asked for.
    pub(super) fn of(status: u16, body: &[u8], token: &str) -> Self {
        match status {
            200..=299 => Self::Rules(Arc::new(Rules::read(body, token))),
            429 | 500.. => Self::Unreadable(format!("robots.txt was answered with {status}").into()),
            // Redirects that lead nowhere too.
            _ => Self::Absent,
        }
    }

    pub(super) fn state(&self) -> RobotsState {
        match self {
            Self::Rules(_) => RobotsState::Rules,
            Self::Absent => RobotsState::Absent,
            Self::Unreadable(_) => RobotsState::Unreadable,
        }
    }

    pub(super) fn allows(&self, url: &Url) -> bool {
        match self {
            Self::Rules(rules) => rules.allows(url),
            Self::Absent => true,
            Self::Unreadable(_) => false,
        }
    }

    pub(super) fn crawl_delay(&self) -> Option<Duration> {
        match self {
            Self::Rules(rules) => rules.crawl_delay(),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

/// What is believed, by origin.
pub(super) struct Known {
    kept: Cache<String, Believed, Weight>,
}

#[derive(Debug, Clone)]
pub(super) struct Believed {
    pub(super) robots: Robots,
    pub(super) until: Instant,
}

impl Known {
    pub(super) fn new() -> Self {
        Self { kept: Cache::with_weighter(1_000, ROOM, Weight) }
    }

    /// What is believed, or what `ask` finds out; one asks for all who want the same. What fails is not kept.
    pub(super) async fn get<E>(&self, url: &Url, ask: impl AsyncFnOnce() -> Result<Robots, E>) -> Result<Believed, E> {
        let origin = url.origin().ascii_serialization();
        let now = Instant::now();
        self.kept.remove_if(&origin, |believed| believed.until <= now);
        self.kept
            .get_or_insert_async(&origin, async {
                let robots = ask().await?;
                let unreadable = matches!(robots, Robots::Unreadable(_));
                let until = Instant::now() + if unreadable { UNREADABLE_FOR } else { BELIEVED_FOR };
                Ok(Believed { robots, until })
            })
            .await
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("origins", &self.kept.len()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<String, Believed> for Weight {
    fn weight(&self, origin: &String, believed: &Believed) -> u64 {
        let rules = match &believed.robots {
            Robots::Rules(rules) => rules.bytes(),
            Robots::Absent | Robots::Unreadable(_) => 0,
        };
        (origin.len() + rules + 256) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_states_by_status() {
        for (status, expected) in [
            (200, RobotsState::Rules),
            (204, RobotsState::Rules),
            (302, RobotsState::Absent),
            (401, RobotsState::Absent),
            (404, RobotsState::Absent),
            (429, RobotsState::Unreadable),
            (500, RobotsState::Unreadable),
            (503, RobotsState::Unreadable),
        ] {
            let robots = Robots::of(status, b"User-agent: *\nDisallow: /a", "sekisho");
            assert_eq!(robots.state(), expected, "{status}");
            let allows = |path: &str| robots.allows(&Url::parse("http://example.com").unwrap().join(path).unwrap());
            let allowed = [allows("/a"), allows("/b")];
            match expected {
                RobotsState::Rules => assert_eq!(allowed, [false, true]),
                RobotsState::Absent => assert_eq!(allowed, [true, true]),
                RobotsState::Unreadable => assert_eq!(allowed, [false, false]),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_believed_for_a_day_and_trouble_for_minutes() {
        let (known, url) = (Known::new(), Url::parse("http://example.com/a").unwrap());
        let ask = async |status: u16| known.get::<()>(&url, async || Ok(Robots::of(status, b"", "a"))).await.unwrap();
        assert_eq!(ask(503).await.robots.state(), RobotsState::Unreadable);
        tokio::time::advance(UNREADABLE_FOR - Duration::from_secs(1)).await;
        assert_eq!(ask(200).await.robots.state(), RobotsState::Unreadable);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask(200).await.robots.state(), RobotsState::Rules);
        tokio::time::advance(BELIEVED_FOR - Duration::from_secs(1)).await;
        assert_eq!(ask(404).await.robots.state(), RobotsState::Rules);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask(404).await.robots.state(), RobotsState::Absent);
        assert!(known.get(&Url::parse("https://example.com/").unwrap(), async || Err(())).await.is_err());
    }
}
