//! The durable store: killed at any time, on a full disk, on a broken file, after a restart.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redb::{ReadableDatabase as _, ReadableTableMetadata as _, TableDefinition};
use sekisho::Error;
use sekisho::clock::{Clock, ManualClock, Timestamp, WallClock};
use sekisho::limits::durable::OpenError;
use sekisho::limits::{
    Admission, Capacity, Charge, DurableStore, Limits, OnLeaseExpiry, Period, Policy, ReservationId, ReserveOptions,
    Reserved, Rule, RuleOutcome, TimeZone,
};
use sekisho_testkit::poll_until;

use super::common::{ready, requests, runtime, subject};
use super::{DAY, orders, spawn, told};

const LIMIT: u64 = 400;
const SUBJECTS: [&str; 3] = ["one", "two", "three"];

/// 2023-11-14T12:00:00Z.
const NOON: Timestamp = Timestamp::from_secs(1_699_963_200);

fn open(path: &Path, clock: Arc<dyn Clock>, policies: Vec<Policy>) -> Limits {
    let store = DurableStore::open(path, Capacity::default(), clock).unwrap();
    Limits::new(policies, Arc::new(store)).unwrap()
}

/// Leases and windows so long that none ends while a test runs.
fn spending() -> Vec<Policy> {
    let rules = || vec![Rule::sliding_log(LIMIT, DAY).unwrap(), Rule::concurrency(LIMIT).unwrap(), Rule::block()];
    let policy = |name, on_expiry| Policy::new(name, rules()).unwrap().with_lease(DAY, on_expiry).unwrap();
    vec![policy("settles", OnLeaseExpiry::Settle), policy("releases", OnLeaseExpiry::Release)]
}

async fn reserve(limits: &Limits, policy: &str, who: &str) -> Option<Admission> {
    match limits.reserve(&[Charge::new(policy, subject(who))], &ReserveOptions::default()).await.unwrap() {
        Reserved::Admitted(admission) => Some(admission),
        Reserved::Denied(_) => None,
    }
}

async fn allowed(limits: &Limits, policy: &str, who: &str) -> bool {
    limits.check(&[Charge::new(policy, subject(who))]).await.unwrap().allowed
}

async fn rules(limits: &Limits, policy: &str, who: &str) -> Vec<RuleOutcome> {
    limits.explain(policy, subject(who), None).await.unwrap().charges.remove(0).rules
}

/// In a process of its own: spends all that it can get and says so after each answer, until it is killed.
#[test]
fn process_that_spends() {
    let Some(path) = orders() else { return };
    runtime().block_on(async {
        let limits = Arc::new(open(Path::new(&path), Arc::new(WallClock::new()), spending()));
        let mut tasks = Vec::new();
        for task in 0..12_usize {
            let limits = Arc::clone(&limits);
            tasks.push(tokio::spawn(async move {
                let who = SUBJECTS[task % 3];
                while let Some(admission) = reserve(&limits, "settles", who).await {
                    println!("HELD {}", admission.into_id());
                    let Some(admission) = reserve(&limits, "releases", who).await else { return };
                    admission.settle(&requests(1)).await.unwrap();
                    println!("SETTLED");
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    println!("SPENT");
}

#[derive(Default)]
struct Heard {
    held: Vec<ReservationId>,
    settled: u64,
    is_spent: bool,
}

impl Heard {
    /// Listens to a process until it has said `until` lines and is killed, or is done.
    fn listen(&mut self, path: &Path, until: usize) {
        let mut child = spawn("durable::process_that_spends", path.to_str().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = until;
        // What it said before it died counts, too: it was said after the answer. Half a line was not said.
        while let Some(Ok(line)) = lines.next() {
            if let Some((_, id)) = line.split_once("HELD ") {
                self.held.extend(id.parse().ok());
            } else if line.ends_with("SETTLED") {
                self.settled += 1;
            }
            self.is_spent |= line.ends_with("SPENT");
            left = left.saturating_sub(1);
            if left == 0 {
                // It may have come to its end just now.
                drop(child.kill());
            }
        }
        child.wait().unwrap();
    }
}

#[test]
fn what_was_admitted_before_a_kill_is_counted_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let mut heard = Heard::default();
    for round in 0..20 {
        heard.listen(&path, 10 + rand::random_range(0..60) + round);
    }
    // The last one may have all that is left.
    heard.listen(&path, usize::MAX);
    assert!(heard.is_spent);
    runtime().block_on(async {
        let limits = open(&path, Arc::new(WallClock::new()), spending());
        let mut sums = [0, 0, 0];
        for who in SUBJECTS {
            let settles = rules(&limits, "settles", who).await;
            let releases = rules(&limits, "releases", who).await;
            for rule in [&settles[0], &releases[0]] {
                assert!(rule.used + rule.held <= LIMIT, "{rule:?}");
            }
            sums[0] += settles[0].held;
            sums[1] += releases[0].used;
            sums[2] += settles[0].used;
        }
        assert!(sums[0] >= heard.held.len() as u64, "{} of {} are held", sums[0], heard.held.len());
        assert!(sums[1] >= heard.settled, "{} of {} are settled", sums[1], heard.settled);
        assert_eq!(sums[2], 0);
        assert!(heard.held.len() as u64 > LIMIT, "it was about something");
        for id in heard.held {
            limits.settle(&id, &requests(1)).await.unwrap();
        }
    });
}

/// A crawler's policy.
fn domain() -> Policy {
    let second = Duration::from_secs(1);
    let rules = vec![
        Rule::block().named("cooldown").unwrap(),
        Rule::calendar(200, Period::Day, TimeZone::UTC).unwrap().named("requests").unwrap(),
        Rule::calendar(100, Period::Day, TimeZone::UTC).unwrap().named("pages").unwrap().counting("pages").unwrap(),
        Rule::interval(second, 5 * second, 60 * second).unwrap(),
        Rule::concurrency(8).unwrap(),
        Rule::sliding_log(50, 60 * second).unwrap(),
    ];
    Policy::new("domain", rules).unwrap()
}

#[tokio::test]
async fn a_restart_changes_no_figure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let clock = ManualClock::at(NOON);
    let bucket = || Policy::new("bucket", vec![Rule::gcra(10, Duration::from_secs(10), None).unwrap()]).unwrap();
    let start = || open(&path, Arc::new(clock.clone()), vec![domain(), bucket()]);
    let limits = start();
    let held = reserve(&limits, "domain", "held").await.unwrap().into_id();
    for _ in 0..3 {
        assert!(allowed(&limits, "domain", "counted").await);
        assert!(allowed(&limits, "bucket", "counted").await);
        clock.advance(Duration::from_millis(100));
    }
    let until = NOON + Duration::from_secs(7_200);
    let cooldown = [("cooldown".to_owned(), 0)].into();
    limits.override_limits("domain", subject("cooling"), None, &cooldown, until).await.unwrap();
    let figures = async |limits: &Limits| {
        let mut all = vec![rules(limits, "bucket", "counted").await];
        for who in ["held", "counted", "cooling", "nobody"] {
            all.push(rules(limits, "domain", who).await);
        }
        all
    };
    let before = figures(&limits).await;
    drop(limits);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    let limits = start();
    assert_eq!(figures(&limits).await, before);
    let decision = limits.check(&[Charge::new("domain", subject("cooling"))]).await.unwrap();
    assert_eq!((decision.allowed, decision.charges[0].rules[0].denied_until), (false, Some(until)));
    limits.settle(&held, &requests(1)).await.unwrap();
    let settled = rules(&limits, "domain", "held").await;
    assert_eq!((settled[1].used, settled[4].held), (1, 0));
    drop(limits);

    // The cooldown is over, the lease of nobody's reservation, and the day.
    let limits = start();
    assert_eq!(rules(&limits, "domain", "held").await, settled);
    let lost = reserve(&limits, "domain", "lost").await.unwrap().into_id();
    drop(limits);
    clock.advance(Duration::from_secs(90));
    let limits = start();
    let ended = limits.release(&lost).await.unwrap();
    assert_eq!(ended.ending, sekisho::limits::Ending::Expired);
    assert_eq!(rules(&limits, "domain", "lost").await[1].used, 1);
    drop(limits);
    clock.advance(DAY);
    let limits = start();
    assert!(allowed(&limits, "domain", "cooling").await);
    assert_eq!(rules(&limits, "domain", "counted").await[1].used, 0);
}

/// What is open is kept over a restart and how it ended is not: an end that nobody knows of is not one that was lost.
#[tokio::test]
async fn an_end_that_is_repeated_after_a_restart_does_not_count_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let clock = ManualClock::at(NOON);
    let start = || open(&path, Arc::new(clock.clone()), vec![domain()]);
    let limits = start();
    let [settled, still_open] = [
        reserve(&limits, "domain", "a").await.unwrap().into_id(),
        reserve(&limits, "domain", "b").await.unwrap().into_id(),
    ];
    limits.settle(&settled, &requests(1)).await.unwrap();
    drop(limits);
    let limits = start();
    let before = rules(&limits, "domain", "a").await;
    assert!(matches!(limits.settle(&settled, &requests(1)).await, Err(Error::UnknownReservation)));
    assert_eq!(rules(&limits, "domain", "a").await, before);
    limits.settle(&still_open, &requests(1)).await.unwrap();
    assert_eq!(rules(&limits, "domain", "b").await[1].used, 1);
}

#[tokio::test]
async fn a_changed_policy_keeps_what_still_means_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let clock = ManualClock::at(NOON);
    let start = |rules: Vec<Rule>| {
        open(&path, Arc::new(clock.clone()), vec![Policy::new("first", vec![Rule::block()]).unwrap(), policy(rules)])
    };
    fn policy(rules: Vec<Rule>) -> Policy {
        Policy::new("p", rules).unwrap()
    }
    let day = |limit| Rule::calendar(limit, Period::Day, TimeZone::UTC).unwrap().named("day").unwrap();
    let log = |window| Rule::sliding_log(10, window).unwrap().named("log").unwrap();
    let limits = start(vec![day(5), log(DAY), Rule::concurrency(3).unwrap()]);
    assert!(allowed(&limits, "p", "a").await && allowed(&limits, "p", "a").await);
    let held = reserve(&limits, "p", "a").await.unwrap().into_id();
    drop(limits);

    // Another order, another limit, another window, a rule more, and a policy before it less.
    let changed = vec![Rule::block(), Rule::concurrency(4).unwrap(), log(2 * DAY), day(7)];
    let limits = open(&path, Arc::new(clock.clone()), vec![policy(changed)]);
    let figures: Vec<_> = rules(&limits, "p", "a").await.iter().map(|r| (r.used, r.held, r.remaining)).collect();
    assert_eq!(figures, [(0, 0, 1), (0, 1, 3), (0, 0, 10), (2, 1, 4)]);
    limits.settle(&held, &requests(1)).await.unwrap();
    let figures: Vec<_> = rules(&limits, "p", "a").await.iter().map(|r| (r.used, r.held, r.remaining)).collect();
    assert_eq!(figures, [(0, 0, 1), (0, 0, 4), (0, 0, 10), (3, 0, 4)]);
}

#[tokio::test]
async fn a_clock_that_went_back_over_a_restart_opens_no_day_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let day = Rule::calendar(2, Period::Day, TimeZone::UTC).unwrap();
    let policy = || Policy::new("p", vec![day.clone()]).unwrap();
    let spend = async |limits: &Limits, who: &str| {
        let mut admitted = 0;
        while allowed(limits, "p", who).await {
            admitted += 1;
        }
        admitted
    };
    let limits = open(&path, Arc::new(ManualClock::at(NOON)), vec![policy()]);
    assert_eq!(spend(&limits, "a").await, 2);
    drop(limits);
    let tomorrow = NOON + DAY;
    let limits = open(&path, Arc::new(ManualClock::at(tomorrow)), vec![policy()]);
    assert_eq!((spend(&limits, "a").await, spend(&limits, "b").await), (2, 2));
    drop(limits);
    // Back to the day before, of which nothing is known any more.
    let clock = ManualClock::at(NOON);
    let limits = open(&path, Arc::new(clock.clone()), vec![policy()]);
    assert_eq!((spend(&limits, "a").await, spend(&limits, "c").await), (0, 2));
    let decision = limits.peek(&[Charge::new("p", subject("a"))]).await.unwrap();
    assert!(decision.at >= tomorrow);
    clock.set(tomorrow + DAY);
    assert_eq!((spend(&limits, "a").await, spend(&limits, "c").await), (2, 2));
}

fn records_in(path: &Path) -> u64 {
    let database = redb::Database::open(path).unwrap();
    let records: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("records");
    database.begin_read().unwrap().open_table(records).unwrap().len().unwrap()
}

#[tokio::test]
async fn what_says_nothing_any_more_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let clock = ManualClock::at(NOON);
    let minute = || Policy::new("p", vec![Rule::fixed_window(5, Duration::from_secs(60)).unwrap()]).unwrap();
    let start = || open(&path, Arc::new(clock.clone()), vec![minute(), domain()]);
    let crowd = async |limits: &Limits| {
        let limits = &limits;
        let all = (0..300).map(|i| async move { allowed(limits, "p", &format!("{i}")).await });
        assert!(futures_util::future::join_all(all).await.into_iter().all(|allowed| allowed));
    };
    let limits = start();
    crowd(&limits).await;
    let lost = reserve(&limits, "domain", "lost").await.unwrap().into_id();
    drop(limits);
    assert_eq!(records_in(&path), 301);

    // As others come.
    let limits = start();
    clock.advance(Duration::from_secs(120));
    for i in 0..80 {
        assert!(allowed(&limits, "domain", &format!("{i}")).await);
    }
    drop(limits);
    assert_eq!(records_in(&path), 81, "the crowd is gone, the reservation is there");

    // When it is opened, and with it a reservation that nobody ended.
    let limits = start();
    crowd(&limits).await;
    drop(limits);
    clock.advance(2 * DAY);
    drop(start());
    assert_eq!(records_in(&path), 0);
    assert!(matches!(start().release(&lost).await, Err(Error::UnknownReservation)));
}

/// In a process of its own: says how it fares with a file that somebody else has.
#[test]
fn process_that_opens() {
    let Some(path) = orders() else { return };
    match DurableStore::open(&path, Capacity::default(), Arc::new(WallClock::new())) {
        Ok(_) => println!("OPENED"),
        Err(error) => println!("REFUSED {} {error}", matches!(error, OpenError::InUse { .. })),
    }
}

#[test]
fn a_second_process_is_refused_and_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let path_text = path.to_str().unwrap();
    let first = DurableStore::open(&path, Capacity::default(), Arc::new(WallClock::new())).unwrap();
    let mut child = spawn("durable::process_that_opens", path_text);
    let refused = told(&mut child, "REFUSED");
    assert!(refused.starts_with("true") && refused.contains(path_text), "{refused}");
    child.wait().unwrap();
    drop(first);
    let mut child = spawn("durable::process_that_opens", path_text);
    told(&mut child, "OPENED");
    child.wait().unwrap();
}

/// In a process of its own, because it is the process that may write no more: nothing beyond the first page of any file.
#[test]
fn process_on_a_full_disk() {
    let Some(path) = orders() else { return };
    let path = Path::new(&path);
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let may_write = |bytes: Option<u64>| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        rustix::process::setrlimit(
            rustix::process::Resource::Fsize,
            rustix::process::Rlimit { current: bytes, ..limit },
        )
        .unwrap();
    };
    runtime().block_on(async {
        let limits = open(path, Arc::clone(&clock), spending());
        let first = reserve(&limits, "settles", "one").await.unwrap().into_id();
        assert!(allowed(&limits, "settles", "one").await);
        let before = rules(&limits, "settles", "one").await;
        assert_eq!((before[0].used, before[0].held), (1, 1));

        may_write(Some(4096));
        let charge = [Charge::new("settles", subject("one"))];
        for _ in 0..3 {
            let reserved = limits.reserve(&charge, &ReserveOptions::default()).await.map(|_| ());
            let checked = limits.check(&charge).await.map(|_| ());
            for answer in [reserved, checked, limits.ping().await] {
                let Err(Error::Unavailable { reason, may_have_run }) = answer else { panic!("{answer:?}") };
                assert!(!may_have_run && reason.contains(path.to_str().unwrap()), "{reason}");
            }
        }
        let meanwhile = rules(&limits, "settles", "one").await;
        let figures = |rules: &[RuleOutcome]| rules.iter().map(|r| (r.used, r.held, r.remaining)).collect::<Vec<_>>();
        assert_eq!(figures(&meanwhile), figures(&before), "what was not admitted is not counted");
        // What has been admitted can be ended all the same.
        limits.settle(&first, &requests(1)).await.unwrap();

        may_write(None);
        limits.ping().await.unwrap();
        assert!(reserve(&limits, "settles", "one").await.is_some());
    });
    let limits = open(path, clock, spending());
    let after = runtime().block_on(rules(&limits, "settles", "one"));
    // The last one was dropped, which gives it back.
    assert_eq!((after[0].used, after[0].held), (2, 0));
    println!("SURVIVED");
}

#[test]
fn f46_a_full_disk_admits_nobody_and_is_over_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    // Whoever ignores the signal is told by the write itself, as on a full disk.
    let mut child = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "durable::process_on_a_full_disk"])
        .env("SEKISHO_TEST_ORDERS", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    told(&mut child, "SURVIVED");
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn a_broken_file_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOON));
    let limits = open(&path, Arc::clone(&clock), vec![domain()]);
    for i in 0..200 {
        assert!(allowed(&limits, "domain", &format!("{}", i % 50)).await);
    }
    let before = rules(&limits, "domain", "7").await;
    drop(limits);
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = DurableStore::open(&path, Capacity::default(), Arc::clone(&clock)).unwrap_err();
        assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    };
    refused(b"");
    refused(b"policies:\n");
    refused(&[0; 8192]);
    for length in [100, 4096, whole.len() / 2, whole.len() - 4096] {
        refused(&whole[..length]);
    }
    // Any page that is in use: either it is noticed, or it did not matter.
    let mut noticed = 0;
    for page in (4096..whole.len()).step_by(4096).filter(|page| whole[*page..page + 64].iter().any(|b| *b != 0)) {
        let mut broken = whole.clone();
        broken[page + 40] ^= 0xff;
        fs::write(&path, &broken).unwrap();
        match DurableStore::open(&path, Capacity::default(), Arc::clone(&clock)) {
            Err(error) => {
                assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
                noticed += 1;
            }
            Ok(store) => {
                let limits = Limits::new(vec![domain()], Arc::new(store)).unwrap();
                assert_eq!(rules(&limits, "domain", "7").await, before);
            }
        }
    }
    assert!(noticed > 0);
    fs::write(&path, &whole).unwrap();
    assert_eq!(rules(&open(&path, clock, vec![domain()]), "domain", "7").await, before);

    let nowhere = folder.path().join("none/limits.redb");
    let error = DurableStore::open(&nowhere, Capacity::default(), Arc::new(WallClock::new())).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("none/limits.redb"), "{error}");
}

#[tokio::test]
async fn a_reserve_whose_caller_goes_away_leaves_nothing_held() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let limits = open(&path, Arc::new(ManualClock::at(NOON)), spending());
    let charge = [Charge::new("settles", subject("one"))];
    let options = ReserveOptions::default();
    let left = poll_until(Duration::from_secs(60), || {
        let mut waiting = std::pin::pin!(limits.reserve(&charge, &options));
        let polled = waiting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        polled.is_pending().then_some(())
    });
    assert!(left.is_some(), "nobody ever had to wait");
    assert_eq!(ready(rules(&limits, "settles", "one"))[0].held, 0);
    drop(limits);
    let limits = open(&path, Arc::new(ManualClock::at(NOON)), spending());
    assert_eq!(rules(&limits, "settles", "one").await[0].held, 0);
}
