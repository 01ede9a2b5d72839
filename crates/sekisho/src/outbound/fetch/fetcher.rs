//! The way of a fetch: robots, then the page, then on to where it redirects, each request charged where it lands.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use tokio::time::{Instant, sleep};
use url::Url;

use super::answer::{Body, Fetched, Reason};
use super::ask::{Answer, Ask, Heard, Time, ask};
use super::client::{Client, Missed};
use super::guard::Guard;
use super::meters::Meters;
use super::pages::{self, Page, Pages};
use super::redirect::{next, taken_along};
use super::request::FetchRequest;
use super::resolve::{Checked, Resolve, SystemResolver};
use super::robots::{self, Believed, Known, Robots, RobotsState};
use super::turn::{Patience, jittered};
use crate::clock::{Clock as _, Timestamp, WallClock};
use crate::error::{Error, Invalid};
use crate::outbound::{Denied, Kind, Outbound, Site};

/// How a fetcher goes about it.
#[derive(Debug, Clone)]
pub struct FetchTerms {
    /// Who we say we are; robots.txt knows us by the name before the slash.
    pub agent: String,
    /// For turns, all of a fetch together.
    pub max_wait: Duration,
    /// For requests on their way, all of a fetch together. It should be shorter than the lease of a request.
    pub timeout: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// The longest body in memory.
    pub max_bytes: u64,
    /// The longest body in a file.
    pub max_file_bytes: u64,
    pub redirects: usize,
    /// After trouble that may pass; each is charged anew.
    pub retries: u32,
    /// Before the first retry, then twice as long each time.
    pub backoff: Duration,
}

impl Default for FetchTerms {
    fn default() -> Self {
        Self {
            agent: concat!("sekisho/", env!("CARGO_PKG_VERSION")).to_owned(),
            max_wait: Duration::from_secs(60),
            timeout: Duration::from_secs(120),
            idle: Duration::from_secs(20),
            max_bytes: 16 << 20,
            max_file_bytes: 1 << 30,
            redirects: 10,
            retries: 2,
            backoff: Duration::from_millis(500),
        }
    }
}

/// Fetches pages, politely. Clones share connections, and what is known of robots.txt files.
#[derive(Debug, Clone)]
pub struct Fetcher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    outbound: Outbound,
    terms: FetchTerms,
    client: Client,
    robots: Known,
    pages: Option<Arc<dyn Pages>>,
    /// Only to say when to come back: turns are on the store's clock.
    clock: WallClock,
    meters: Meters,
}

/// What a fetcher is made of, where not everything is as usual.
#[derive(Debug, Clone)]
pub struct FetchParts {
    pub guard: Guard,
    pub resolver: Arc<dyn Resolve>,
    /// What was fetched before; without it nothing is asked conditionally.
    pub pages: Option<Arc<dyn Pages>>,
}

impl Default for FetchParts {
    fn default() -> Self {
        Self { guard: Guard::default(), resolver: Arc::new(SystemResolver), pages: None }
    }
}

/// Why a fetch ends before its last answer.
enum Stop {
    Answer(Box<Fetched>),
    Failed(Error),
}

/// A fetch on its way.
struct Trip<'a> {
    request: &'a FetchRequest,
    url: Url,
    headers: HeaderMap,
    time: Time,
    robots: Option<RobotsState>,
}

impl Fetcher {
    pub fn new(outbound: Outbound, terms: FetchTerms, parts: FetchParts) -> Result<Self, Invalid> {
        let agent =
            HeaderValue::from_str(&terms.agent).map_err(|_| Invalid::new("agent", "is no value of a header"))?;
        if robots::product_token(&terms.agent).is_empty() {
            return Err(Invalid::new(
                "agent",
                "must begin with a name that robots.txt can know it by, such as `mybot/1.0`",
            ));
        }
        let client = Client::new(Checked::new(parts.guard, parts.resolver), agent);
        let (robots, pages, clock, meters) = (Known::new(), parts.pages, WallClock::new(), Meters::new());
        Ok(Self { inner: Arc::new(Inner { outbound, terms, client, robots, pages, clock, meters }) })
    }

    /// What became of it. An error means that the store did not decide; no request was sent without its leave.
    pub async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, Error> {
        let terms = &self.inner.terms;
        let patience = Patience { left: terms.max_wait, waits: request.waits };
        let mut trip = Trip {
            request,
            url: request.url.clone(),
            headers: request.headers.clone(),
            time: Time { left: terms.timeout, patience },
            robots: None,
        };
        let fetched = match self.inner.follow(&mut trip).await {
            Ok(fetched) => fetched,
            Err(Stop::Answer(fetched)) => *fetched,
            Err(Stop::Failed(error)) => return Err(error),
        };
        self.inner.meters.count(&fetched);
        Ok(fetched)
    }
}

impl Inner {
    async fn follow(&self, trip: &mut Trip<'_>) -> Result<Fetched, Stop> {
        let mut redirects = 0;
        loop {
            let delay = self.obey_robots(trip).await?;
            let kept = self.kept(trip).await;
            let answer = self.visit(trip, kept.as_deref(), delay).await?;
            if let (304, Some(page)) = (answer.status, kept) {
                return Ok(self.still_good(trip, &page, &answer).await);
            }
            let to = match next(&trip.url, answer.status, &answer.headers) {
                None => return Ok(self.arrived(trip, answer).await),
                Some(Err(why)) => return Ok(trip.stopped_at(answer, Reason::BadRedirect, why)),
                Some(Ok(_)) if redirects == self.terms.redirects => {
                    let why = format!("more than {redirects} redirects");
                    return Ok(trip.stopped_at(answer, Reason::TooManyRedirects, why));
                }
                Some(Ok(to)) => to,
            };
            redirects += 1;
            trip.headers = taken_along(&trip.headers, &trip.url, &to);
            trip.url = to;
        }
    }

    /// Goes on only if robots.txt allows it, with the delay that it wants.
    ///
    /// It comes before the page's own turn: one that is held while robots.txt is asked for would keep a domain that allows
    /// one request at a time from answering at all.
    async fn obey_robots(&self, trip: &mut Trip<'_>) -> Result<Option<Duration>, Stop> {
        let site = Site::of(&trip.url).map_err(Error::from)?;
        if !self.outbound.domains().terms(&site).robots {
            trip.robots = None;
            return Ok(None);
        }
        let url = trip.url.clone();
        let Believed { robots, until } = self.robots.get(&url, async || self.ask_robots(trip).await).await?;
        trip.robots = Some(robots.state());
        if robots.allows(&trip.url) {
            return Ok(robots.crawl_delay());
        }
        let (why, retry_at) = match &robots {
            Robots::Unreadable(why) => {
                (why.to_string(), Some(self.clock.now() + until.saturating_duration_since(Instant::now())))
            }
            Robots::Rules(_) | Robots::Absent => ("robots.txt forbids it".to_owned(), None),
        };
        Err(Stop::answer(Fetched { retry_at, ..trip.failed(Reason::Robots, why) }))
    }

    async fn ask_robots(&self, trip: &mut Trip<'_>) -> Result<Robots, Stop> {
        let mut url = trip.url.clone();
        url.set_path("/robots.txt");
        url.set_query(None);
        let first = url.clone();
        for _ in 0..=robots::MAX_REDIRECTS {
            let ask = Ask {
                url: &url.clone(),
                kind: Kind::Request,
                headers: accepting(HeaderMap::new()),
                file: None,
                max_bytes: robots::MAX_BYTES as u64,
                cuts: true,
                idle: self.terms.idle,
                // It is asked for between pages.
                delay: None,
            };
            match self.persist(&ask, trip).await? {
                Heard::Denied(denied) => return Err(Stop::answer(trip.denied(&denied))),
                // Then the page cannot be had either, and that is the better answer.
                Heard::Missed(missed) if !missed.was_sent && url == first => {
                    let is_refused = missed.reason == Reason::AddressRefused;
                    trip.robots = (!is_refused).then_some(RobotsState::Unreadable);
                    return Err(Stop::answer(trip.failed(missed.reason, missed.detail)));
                }
                Heard::Missed(missed) => return Ok(unreadable(&missed)),
                Heard::Answer(answer) => {
                    if let Some(trouble) = &answer.trouble {
                        return Ok(unreadable(trouble));
                    }
                    match next(&url, answer.status, &answer.headers) {
                        Some(Ok(to)) => url = to,
                        Some(Err(_)) => return Ok(Robots::Absent),
                        None => {
                            let token = robots::product_token(&self.terms.agent);
                            return Ok(Robots::of(answer.status, answer.body.bytes(), token));
                        }
                    }
                }
            }
        }
        Ok(Robots::Absent)
    }

    /// What was kept of an answer to the same question: one with no headers of the caller's.
    async fn kept(&self, trip: &Trip<'_>) -> Option<Arc<Page>> {
        let pages = self.pages.as_ref().filter(|_| trip.is_common())?;
        pages.find(&trip.url).await
    }

    async fn visit(&self, trip: &mut Trip<'_>, kept: Option<&Page>, delay: Option<Duration>) -> Result<Answer, Stop> {
        let mut headers = accepting(trip.headers.clone());
        headers.extend(kept.into_iter().flat_map(pages::conditions));
        let request = trip.request;
        let ask = Ask {
            url: &trip.url.clone(),
            kind: if request.is_page { Kind::Page } else { Kind::Request },
            headers,
            file: request.file.as_deref(),
            max_bytes: if request.file.is_some() { self.terms.max_file_bytes } else { self.terms.max_bytes },
            cuts: false,
            idle: self.terms.idle,
            delay,
        };
        match self.persist(&ask, trip).await? {
            Heard::Answer(answer) => Ok(answer),
            Heard::Denied(denied) => Err(Stop::answer(trip.denied(&denied))),
            Heard::Missed(missed) => Err(Stop::answer(trip.failed(missed.reason, missed.detail))),
        }
    }

    /// Asks again after trouble that may pass. If the domain has no turn for that, the first trouble is the answer.
    async fn persist(&self, asked: &Ask<'_>, trip: &mut Trip<'_>) -> Result<Heard, Error> {
        let mut last = None;
        for retry in 0..=self.terms.retries {
            let heard = ask(&self.client, &self.outbound, asked, &mut trip.time).await?;
            if let (Heard::Denied(_), Some(last)) = (&heard, last.take()) {
                return Ok(last);
            }
            let pause = jittered(self.terms.backoff * 2_u32.saturating_pow(retry));
            if retry == self.terms.retries || !may_pass(&heard, trip.request.waits) || pause >= trip.time.left {
                return Ok(heard);
            }
            sleep(pause).await;
            trip.time.left -= pause;
            last = Some(heard);
        }
        unreachable!("the last round returns")
    }

    async fn still_good(&self, trip: &Trip<'_>, page: &Page, answer: &Answer) -> Fetched {
        let page = Arc::new(pages::renewed(page, &answer.headers));
        if let Some(pages) = &self.pages {
            pages.keep(&trip.url, Arc::clone(&page)).await;
        }
        Fetched {
            ok: true,
            status: Some(200),
            from_cache: true,
            headers: page.headers.clone(),
            body: Body::Bytes(page.body.clone()),
            ..trip.blank()
        }
    }

    async fn arrived(&self, trip: &Trip<'_>, answer: Answer) -> Fetched {
        let Answer { status, headers, body, trouble } = answer;
        let is_good = matches!(status, 200..=299 | 304);
        if let (Some(pages), Body::Bytes(bytes), None) = (&self.pages, &body, &trouble)
            && trip.is_common()
            && pages::is_worth_keeping(status, &headers)
        {
            pages.keep(&trip.url, Arc::new(Page { headers: headers.clone(), body: bytes.clone() })).await;
        }
        let (reason, detail) = match trouble {
            Some(trouble) => (Some(trouble.reason), Some(trouble.detail)),
            None if is_good => (None, None),
            None => (Some(Reason::Status), Some(format!("the answer is {status}"))),
        };
        let retry_at = if matches!(status, 429 | 503) { self.cooldown(&trip.url).await } else { None };
        let (ok, status) = (reason.is_none(), Some(status));
        Fetched { ok, status, reason, detail, headers, body, retry_at, ..trip.blank() }
    }

    async fn cooldown(&self, url: &Url) -> Option<Timestamp> {
        self.outbound.budget(&Site::of(url).ok()?).await.ok()?.cooldown_until
    }
}

impl Trip<'_> {
    /// Anybody would have sent the same.
    fn is_common(&self) -> bool {
        self.headers.is_empty() && self.request.file.is_none()
    }

    fn blank(&self) -> Fetched {
        Fetched {
            ok: false,
            status: None,
            reason: None,
            detail: None,
            from_cache: false,
            final_url: self.url.clone(),
            headers: HeaderMap::new(),
            body: Body::none(),
            retry_at: None,
            robots: self.robots,
        }
    }

    fn failed(&self, reason: Reason, detail: impl Into<String>) -> Fetched {
        Fetched { reason: Some(reason), detail: Some(detail.into()), ..self.blank() }
    }

    fn denied(&self, denied: &Denied) -> Fetched {
        Fetched { reason: Some(denied.reason.into()), retry_at: denied.retry_at, ..self.blank() }
    }

    fn stopped_at(&self, answer: Answer, reason: Reason, detail: String) -> Fetched {
        Fetched { status: Some(answer.status), headers: answer.headers, ..self.failed(reason, detail) }
    }
}

impl Stop {
    fn answer(fetched: Fetched) -> Self {
        Self::Answer(Box::new(fetched))
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether another try may find it better. Who says "later" is asked again only by those who wait.
fn may_pass(heard: &Heard, waits: bool) -> bool {
    match heard {
        Heard::Denied(_) => false,
        Heard::Missed(missed) => matches!(missed.reason, Reason::Unreachable | Reason::BrokenOff),
        Heard::Answer(Answer { trouble: Some(trouble), .. }) => trouble.reason == Reason::BrokenOff,
        Heard::Answer(answer) => match answer.status {
            429 | 503 => waits,
            500 | 502 | 504 => true,
            _ => false,
        },
    }
}

fn accepting(mut headers: HeaderMap) -> HeaderMap {
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    headers
}

fn unreadable(missed: &Missed) -> Robots {
    Robots::Unreadable(format!("robots.txt cannot be read: {}", missed.detail).into())
}
