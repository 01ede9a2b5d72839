//! What revocations must do wherever they are kept, as cases that run over every store.
//!
//! A case knows nothing of the store: the [`World`] says how time passes there, and how word of a write comes to another
//! process. Names begin with the number of the clause that a case proves, see docs/security.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests fails by panicking, with the case's name")]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Jti, Revocations, Token, TokenKind, Verdict, Whom};
use crate::clock::{Clock as _, ManualClock, Timestamp};

/// Two processes that share a store, and the time they live in.
pub trait World: fmt::Debug + Send + Sync {
    /// The one that writes. It is current.
    fn one(&self) -> &Revocations;

    /// Another, which hears of it. Where nothing is shared it is the same.
    fn other(&self) -> &Revocations;

    /// The clock by which both decide. It never goes back.
    fn clock(&self) -> &ManualClock;

    /// Lets time pass, also for a store that expires keys by a clock of its own, until both are current again.
    fn pass(&self, time: Duration);

    /// Waits until word of what was written has come, and panics where it does not.
    fn until(&self, what: &str, holds: &dyn Fn() -> bool);

    /// How much longer than it has to be a token may be refused: whoever learns of it from the store knows only about when it
    /// expires.
    fn refused_beyond(&self) -> Duration;

    /// How many revocations and marks the store has.
    fn written(&self) -> u64;
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Names each case, so that a failure can be found by it. Before each a day passes: what an earlier one has ended, be it of
/// everyone, is forgotten.
macro_rules! cases {
    ($world:ident, $($case:ident),* $(,)?) => {
        $(
            $world.pass(HOUR * 24);
            $case(&Desk::new($world, stringify!($case))).await;
        )*
    };
}

/// Runs every case, and panics in the first that fails.
pub async fn run(world: &dyn World) {
    cases![
        world,
        a_revoked_token_is_refused_until_it_would_be_anyway,
        c33_what_this_process_revokes_it_refuses_at_once,
        c29_what_has_expired_is_not_written,
        the_lists_are_apart,
        a_deadline_only_grows,
        c12_a_users_mark_ends_what_was_issued_before_it,
        c12_everyones_mark_ends_what_was_issued_before_it,
        c12_of_two_marks_the_greater_holds,
        what_was_issued_in_the_marks_own_second_ends,
        without_a_time_of_issue_any_mark_ends_a_token,
        a_mark_is_kept_for_the_longer_of_two_times,
        what_is_no_name_is_refused,
    ];
}

/// A case's own names, and short words for what it does.
struct Desk<'a> {
    world: &'a dyn World,
    case: &'static str,
    user: String,
    jti: Jti,
}

impl<'a> Desk<'a> {
    fn new(world: &'a dyn World, case: &'static str) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{:08x}", NAMES.fetch_add(1, Ordering::Relaxed), rand::random::<u32>());
        Self { world, case, user: format!("u{name}"), jti: Jti::new(format!("j{name}")).unwrap() }
    }

    fn now(&self) -> Timestamp {
        self.world.clock().now()
    }

    /// Of this case's user and id, issued then.
    fn verdict(&self, by: &Revocations, kind: TokenKind, issued_at: Option<Timestamp>) -> Verdict {
        let token = Token { kind, jti: Some(&self.jti), user: Some(&self.user), issued_at };
        by.check(&token).unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    fn is_good(&self, by: &Revocations, issued_at: Timestamp) -> bool {
        self.verdict(by, TokenKind::Access, Some(issued_at)).is_good()
    }

    async fn revoke(&self, kind: TokenKind, left: Duration) {
        self.world.one().revoke(kind, &self.jti, self.now() + left).await.unwrap();
    }

    async fn end_before(&self, whom: Whom<'_>, at: Timestamp) {
        self.world.one().end_before(whom, at, HOUR).await.unwrap();
    }

    /// Here at once, there as soon as it is heard.
    fn both(&self, what: &str, holds: impl Fn(&Revocations) -> bool) {
        assert!(holds(self.world.one()), "{}: here it is not so that {what}", self.case);
        self.world.until(&format!("{}: {what}", self.case), &|| holds(self.world.other()));
    }
}

async fn a_revoked_token_is_refused_until_it_would_be_anyway(desk: &Desk<'_>) {
    let issued = desk.now();
    let is = |verdict: Verdict| move |by: &Revocations| desk.verdict(by, TokenKind::Access, Some(issued)) == verdict;
    desk.both("it is good", is(Verdict::Good));
    desk.revoke(TokenKind::Access, HOUR * 4).await;
    desk.both("it is revoked", is(Verdict::Revoked));
    desk.world.pass(HOUR * 4 - SECOND * 5);
    desk.both("it is revoked until its end", is(Verdict::Revoked));
    desk.world.pass(SECOND * 6 + desk.world.refused_beyond());
    desk.both("it is forgotten", is(Verdict::Good));
    assert_eq!(desk.world.one().is_revoked(TokenKind::Access, &desk.jti).await, Ok(false));
}

/// Nobody who has logged out is let in by the process that did it, however long word of it takes.
async fn c33_what_this_process_revokes_it_refuses_at_once(desk: &Desk<'_>) {
    let (one, now) = (desk.world.one(), desk.now());
    desk.revoke(TokenKind::Access, HOUR).await;
    assert_eq!(desk.verdict(one, TokenKind::Access, Some(now)), Verdict::Revoked);
    assert_eq!(one.is_revoked(TokenKind::Access, &desk.jti).await, Ok(true));
    let of_user = |user: &str| {
        let token = Token { kind: TokenKind::Refresh, jti: None, user: Some(user), issued_at: Some(now) };
        one.check(&token).unwrap().is_good()
    };
    let neighbour = format!("{}-x", desk.user);
    desk.end_before(Whom::User(&desk.user), now).await;
    assert!(!of_user(&desk.user) && of_user(&neighbour));
    desk.end_before(Whom::Everyone, now).await;
    assert!(!of_user(&neighbour));
    assert_eq!(desk.world.other().is_revoked(TokenKind::Access, &desk.jti).await, Ok(true), "the store knows it");
}

async fn c29_what_has_expired_is_not_written(desk: &Desk<'_>) {
    let before = desk.world.written();
    for left in [Duration::ZERO, SECOND] {
        let until = Timestamp::from_micros(desk.now().as_micros() - u64::try_from(left.as_micros()).unwrap());
        desk.world.one().revoke(TokenKind::Access, &desk.jti, until).await.unwrap();
    }
    assert_eq!(desk.world.written(), before, "{}", desk.case);
    assert_eq!(desk.world.one().is_revoked(TokenKind::Access, &desk.jti).await, Ok(false));
    assert!(desk.is_good(desk.world.one(), desk.now()));
}

async fn the_lists_are_apart(desk: &Desk<'_>) {
    let issued = Some(desk.now());
    desk.revoke(TokenKind::Refresh, HOUR).await;
    desk.both("the refresh token is revoked", |by| desk.verdict(by, TokenKind::Refresh, issued) == Verdict::Revoked);
    desk.both("the access token is not", |by| desk.verdict(by, TokenKind::Access, issued).is_good());
    for by in [desk.world.one(), desk.world.other()] {
        assert_eq!(by.is_revoked(TokenKind::Refresh, &desk.jti).await, Ok(true));
        assert_eq!(by.is_revoked(TokenKind::Access, &desk.jti).await, Ok(false));
    }
}

async fn a_deadline_only_grows(desk: &Desk<'_>) {
    let issued = desk.now();
    let is_revoked = |by: &Revocations| desk.verdict(by, TokenKind::Access, Some(issued)) == Verdict::Revoked;
    desk.revoke(TokenKind::Access, HOUR * 4).await;
    desk.revoke(TokenKind::Access, HOUR).await;
    desk.world.pass(HOUR * 3);
    desk.both("the longer one holds", is_revoked);
    desk.revoke(TokenKind::Access, HOUR * 4).await;
    desk.world.pass(HOUR * 3);
    desk.both("the later one holds", is_revoked);
}

async fn c12_a_users_mark_ends_what_was_issued_before_it(desk: &Desk<'_>) {
    let mark = desk.now();
    desk.end_before(Whom::User(&desk.user), mark).await;
    desk.both("it has ended", |by| !desk.is_good(by, mark) && !desk.is_good(by, Timestamp::from_secs(1)));
    desk.both("what comes later has not", |by| desk.is_good(by, mark + SECOND));
    let ended = Verdict::Ended { not_before: mark };
    desk.both("it says when", |by| desk.verdict(by, TokenKind::Refresh, Some(mark)) == ended);
    desk.both("others are spared", |by| by.not_before(Some("somebody")) == Ok(None));
    desk.both("it is told", |by| by.not_before(Some(&desk.user)) == Ok(Some(mark)));
}

async fn c12_everyones_mark_ends_what_was_issued_before_it(desk: &Desk<'_>) {
    let mark = desk.now();
    desk.end_before(Whom::Everyone, mark).await;
    desk.both("it has ended", |by| !desk.is_good(by, mark) && by.not_before(None) == Ok(Some(mark)));
    desk.both("what comes later has not", |by| desk.is_good(by, mark + SECOND));
}

async fn c12_of_two_marks_the_greater_holds(desk: &Desk<'_>) {
    let (now, user) = (desk.now(), Whom::User(&desk.user));
    let before = |seconds: u64| Timestamp::from_micros(now.as_micros() - seconds * 1_000_000);
    let holds = |mark: Timestamp| move |by: &Revocations| by.not_before(Some(&desk.user)) == Ok(Some(mark));
    desk.end_before(user, before(100)).await;
    desk.end_before(Whom::Everyone, before(200)).await;
    desk.both("everyone's is weaker", holds(before(100)));
    desk.end_before(user, before(300)).await;
    desk.both("an older one changes nothing", holds(before(100)));
    desk.end_before(Whom::Everyone, before(50)).await;
    desk.both("everyone's is stronger", holds(before(50)));
    desk.end_before(user, now).await;
    desk.both("the user's is stronger", holds(now));
    desk.both("everyone's is everyone's", |by| by.not_before(None) == Ok(Some(before(50))));
}

/// Tokens say in which second they were issued, and no more.
async fn what_was_issued_in_the_marks_own_second_ends(desk: &Desk<'_>) {
    let second = desk.now().as_secs_ceil() - 10;
    desk.end_before(Whom::User(&desk.user), Timestamp::from_millis(second * 1_000 + 300)).await;
    let issued = |seconds| move |by: &Revocations| desk.is_good(by, Timestamp::from_secs(seconds));
    desk.both("its own second has ended", |by| !issued(second)(by));
    desk.both("the second after it has not", issued(second + 1));
}

async fn without_a_time_of_issue_any_mark_ends_a_token(desk: &Desk<'_>) {
    let nameless = |by: &Revocations| {
        let token = Token { kind: TokenKind::Refresh, jti: None, user: None, issued_at: None };
        by.check(&token).unwrap().is_good()
    };
    let timeless = |by: &Revocations| desk.verdict(by, TokenKind::Refresh, None).is_good();
    desk.both("without a mark it is good", |by| nameless(by) && timeless(by));
    desk.end_before(Whom::User(&desk.user), Timestamp::from_secs(1)).await;
    desk.both("the user's has ended", |by| !timeless(by));
    desk.both("nobody's has not", nameless);
    desk.end_before(Whom::Everyone, Timestamp::from_secs(1)).await;
    desk.both("nobody's has ended as well", |by| !nameless(by));
}

async fn a_mark_is_kept_for_the_longer_of_two_times(desk: &Desk<'_>) {
    let (one, mark, user) = (desk.world.one(), desk.now(), Whom::User(&desk.user));
    one.end_before(user, mark, HOUR * 4).await.unwrap();
    one.end_before(user, mark, HOUR).await.unwrap();
    desk.world.pass(HOUR * 3);
    desk.both("it holds", |by| !desk.is_good(by, mark));
    desk.world.pass(HOUR + SECOND + desk.world.refused_beyond());
    desk.both("it is forgotten when all it could end has ended", |by| desk.is_good(by, mark));
}

async fn what_is_no_name_is_refused(desk: &Desk<'_>) {
    let before = desk.world.written();
    for user in ["", "a\nb", "a\0b", &"x".repeat(Whom::MAX_USER_BYTES + 1)] {
        assert!(desk.world.one().end_before(Whom::User(user), desk.now(), HOUR).await.is_err(), "{user:?}");
    }
    assert!(Jti::new("").is_err() && Jti::new("a\0b").is_err());
    assert_eq!(desk.world.written(), before, "{}", desk.case);
}
