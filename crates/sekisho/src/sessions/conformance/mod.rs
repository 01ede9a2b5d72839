//! What every store of sessions must do, as cases that anyone who writes one can run.
//!
//! A case knows nothing of the store it runs on: the [`World`] says how time passes there. Names begin with the number of the
//! clause that a case proves, see docs/security.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests fails by panicking, with the case's name")]

mod ends;
mod life;
mod writers;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Document, Put, Session, SessionId, SessionStore, Sessions, Terms, UserId, write_time};
use crate::clock::{Clock as _, ManualClock, Timestamp};

/// A store to be tried, and the time it lives in.
pub trait World: fmt::Debug + Send + Sync {
    fn store(&self) -> Arc<dyn SessionStore>;

    /// The clock by which the store decides.
    fn clock(&self) -> &ManualClock;

    /// Lets time pass: also for a store that expires keys by a clock of its own.
    fn pass(&self, time: Duration);
}

/// 2023-11-14T22:13:20.300Z: not at the edge of anything.
const START: Timestamp = Timestamp::from_millis(1_700_000_000_300);
const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

const TERMS: Terms = Terms {
    ttl: HOUR,
    max_lifetime: Duration::from_secs(4 * 3_600),
    max_per_user: None,
    keep_marks: Duration::from_secs(86_400),
};

/// Names each case by its path, so that a failure can be found by it.
macro_rules! cases {
    ($world:ident, $($module:ident :: $case:ident),* $(,)?) => {
        $(
            $world.clock().set(START);
            let desk = Desk::new($world, concat!(stringify!($module), "::", stringify!($case)));
            $module::$case(&desk).await;
            drop(desk);
        )*
    };
}

/// Runs every case, and panics in the first that fails.
pub async fn run(world: &dyn World) {
    cases![
        world,
        life::what_is_put_is_kept_to_the_letter,
        life::c01_a_new_session_has_an_id_of_its_own,
        life::c05_an_unknown_id_makes_no_session,
        life::c08_a_session_that_is_not_touched_ends,
        life::c08_idle_and_absolute_expiry_hold_together,
        life::c08_a_session_cannot_be_stored_beyond_the_cap,
        life::a_touch_never_shortens_and_never_writes,
        life::c08_a_request_lets_a_session_live_on_by_its_own_measure,
        life::c08_what_it_was_stored_for_goes_with_it,
        life::a_session_that_does_not_say_counts_from_when_it_was_first_seen,
        life::a_time_that_comes_one_day_makes_no_session_younger,
        life::c09_one_too_many_ends_the_oldest,
        life::c09_a_login_ends_another_also_in_the_same_instant,
        life::c09_logins_at_once_leave_as_many_as_may_be,
        life::c09_what_began_long_ago_is_stored_all_the_same,
        life::a_list_has_what_is_alive_the_newest_first,
        life::users_do_not_share_sessions,
        life::a_life_shorter_than_a_second_is_refused,
        writers::two_writers_lose_nothing,
        writers::a_writer_is_told_that_another_was_faster,
        writers::a_replaced_session_keeps_its_expiry,
        writers::c03_a56_rotation_gives_a_new_id_and_kills_the_old,
        writers::c08_a_rotation_begins_no_new_life,
        writers::c04_a_change_of_privilege_takes_a_new_id,
        writers::c04_of_two_that_rotate_one_succeeds,
        ends::c10_what_has_ended_is_not_brought_back,
        ends::c10_an_id_that_ended_before_it_was_known_is_dead,
        ends::c10_a_tombstone_outlives_every_life_it_could_have,
        ends::c10_without_a_time_it_is_dead_while_there_is_a_tombstone,
        ends::c11_all_sessions_of_a_user_end_at_once,
        ends::what_begins_in_the_marks_second_is_refused_and_later_is_not,
        ends::a_session_without_a_time_ends_with_the_mark,
        ends::c11_all_but_one_end,
        ends::c11_what_ended_for_another_is_not_kept_later,
        ends::the_one_that_stays_may_be_rotated,
        ends::marks_combine_by_max_and_never_shrink,
        ends::a_mark_of_the_past_spares_what_began_after_it,
        ends::c12_everyone_can_be_ended,
    ];
}

/// A case's own user, and short words for what it does.
struct Desk<'a> {
    world: &'a dyn World,
    case: &'static str,
    user: UserId,
    sessions: Sessions,
}

impl<'a> Desk<'a> {
    fn new(world: &'a dyn World, case: &'static str) -> Self {
        static USERS: AtomicU64 = AtomicU64::new(0);
        let number = USERS.fetch_add(1, Ordering::Relaxed);
        let user = UserId::new(format!("u{number}-{:08x}", rand::random::<u32>())).unwrap();
        let sessions = Sessions::new(world.store(), Arc::new(world.clock().clone()), TERMS);
        Self { world, case, user, sessions }
    }

    fn id(&self, sid: &str) -> SessionId {
        SessionId::new(self.user.as_str(), sid).unwrap()
    }

    fn now(&self) -> Timestamp {
        self.world.clock().now()
    }

    fn pass(&self, time: Duration) {
        self.world.pass(time);
    }

    /// What a client would save that logs in now.
    fn fresh(&self, note: &str) -> Document {
        let created = write_time(self.now());
        Document::new(format!(r#"{{"user_id":"{}","created_at":"{created}","note":"{note}"}}"#, self.user.as_str()))
            .unwrap()
    }

    async fn put(&self, sid: &str, document: &Document) -> Put {
        self.sessions.put(&self.id(sid), document, None).await.unwrap()
    }

    /// Stores what begins now, under a name.
    async fn login(&self, sid: &str) -> Document {
        let document = self.fresh(sid);
        assert!(matches!(self.put(sid, &document).await, Put::Stored(_)), "{}: {sid} was refused", self.case);
        document
    }

    async fn get(&self, sid: &str) -> Option<Session> {
        self.sessions.get(&self.id(sid)).await.unwrap()
    }

    async fn is_alive(&self, sid: &str) -> bool {
        self.get(sid).await.is_some()
    }

    async fn known(&self) -> Vec<String> {
        let sessions = self.sessions.list(&self.user).await.unwrap();
        sessions.into_iter().map(|session| session.id.sid.as_str().to_owned()).collect()
    }
}
