use super::*;

async fn is_refused(desk: &Desk<'_>, sid: &str, document: &Document) -> bool {
    let refused = matches!(desk.put(sid, document).await, Put::Ended { .. });
    assert_eq!(refused, !desk.is_alive(sid).await, "{}: {sid}", desk.case);
    refused
}

pub(super) async fn c10_what_has_ended_is_not_brought_back(desk: &Desk<'_>) {
    let document = desk.login("s").await;
    assert!(desk.sessions.end(&desk.id("s")).await.unwrap());
    assert!(!desk.is_alive("s").await);
    assert!(is_refused(desk, "s", &document).await);
    assert!(is_refused(desk, "s", &desk.fresh("later")).await);
    assert_eq!(desk.sessions.replace(&desk.id("s"), &document, &document).await.unwrap(), Put::Ended { mark: None });
    assert_eq!(desk.sessions.touch(&desk.id("s"), None).await.unwrap(), None);
    assert_eq!(desk.sessions.rotate(&desk.id("s")).await.unwrap(), None);
    assert!(!desk.sessions.end(&desk.id("s")).await.unwrap(), "it was not there any more");
    assert_eq!(desk.known().await, [""; 0]);
}

pub(super) async fn c10_an_id_that_ended_before_it_was_known_is_dead(desk: &Desk<'_>) {
    assert!(!desk.sessions.end(&desk.id("s")).await.unwrap());
    assert!(is_refused(desk, "s", &desk.fresh("s")).await);
}

pub(super) async fn c10_a_tombstone_outlives_every_life_it_could_have(desk: &Desk<'_>) {
    let document = desk.login("s").await;
    desk.sessions.end(&desk.id("s")).await.unwrap();
    for _ in 0..9 {
        desk.pass(SECOND * 1_800);
        assert!(is_refused(desk, "s", &document).await);
    }
    desk.pass(HOUR * 24);
    assert!(is_refused(desk, "s", &document).await, "by now the cap refuses it");
}

/// The bound: whoever writes it later than this begins a session that nobody can tell from a new one.
pub(super) async fn c10_without_a_time_it_is_dead_while_there_is_a_tombstone(desk: &Desk<'_>) {
    let silent = Document::new("{}").unwrap();
    desk.put("s", &silent).await;
    desk.sessions.end(&desk.id("s")).await.unwrap();
    desk.pass(TERMS.max_lifetime + SECOND * 110);
    assert!(is_refused(desk, "s", &silent).await);
}

pub(super) async fn c11_all_sessions_of_a_user_end_at_once(desk: &Desk<'_>) {
    let mut documents = Vec::new();
    for sid in ["a", "b", "c"] {
        documents.push((sid, desk.login(sid).await));
    }
    desk.pass(SECOND * 5);
    let mark = desk.sessions.end_all(&desk.user).await.unwrap();
    assert_eq!(mark, desk.now());
    desk.pass(SECOND);
    for (sid, document) in &documents {
        assert!(!desk.is_alive(sid).await, "{sid}");
        assert!(is_refused(desk, sid, document).await, "{sid}");
    }
    // One that was never known here either.
    let unknown = Document::new(r#"{"created_at":"2023-11-14T22:00:00"}"#).unwrap();
    assert!(is_refused(desk, "unknown", &unknown).await);
    assert_eq!(desk.known().await, [""; 0]);
    desk.login("new").await;
    assert!(desk.is_alive("new").await);
}

pub(super) async fn what_begins_in_the_marks_second_is_refused_and_later_is_not(desk: &Desk<'_>) {
    let mark = desk.sessions.end_all(&desk.user).await.unwrap();
    desk.pass(Duration::from_millis(699));
    let put = desk.put("same-second", &desk.fresh("s")).await;
    assert_eq!(put, Put::Ended { mark: Some(mark) });
    let put = desk.sessions.create(&desk.user, serde_json::Map::new(), None).await.unwrap();
    assert_eq!(put, Put::Ended { mark: Some(mark) });
    desk.pass(Duration::from_millis(1));
    desk.login("next-second").await;
    let put = desk.sessions.create(&desk.user, serde_json::Map::new(), None).await.unwrap();
    assert!(matches!(put, Put::Stored(_)), "{put:?}");
}

pub(super) async fn a_session_without_a_time_ends_with_the_mark(desk: &Desk<'_>) {
    let silent = Document::new("{}").unwrap();
    desk.put("before", &silent).await;
    desk.pass(SECOND * 5);
    desk.sessions.end_all(&desk.user).await.unwrap();
    desk.pass(SECOND * 5);
    assert!(is_refused(desk, "before", &silent).await);
    // Nobody knows that it began after the mark, so it counts as begun before.
    assert!(is_refused(desk, "after", &silent).await);
}

pub(super) async fn c11_all_but_one_end(desk: &Desk<'_>) {
    let mut documents = Vec::new();
    for sid in ["a", "b", "c"] {
        documents.push(desk.login(sid).await);
    }
    desk.pass(SECOND * 5);
    desk.sessions.end_others(&desk.id("b")).await.unwrap();
    desk.pass(SECOND * 5);
    assert_eq!(desk.known().await, ["b"]);
    assert!(is_refused(desk, "a", &documents[0]).await);
    assert!(!is_refused(desk, "b", &documents[1]).await);
    assert!(is_refused(desk, "unknown", &documents[0]).await);
    desk.login("d").await;
    // The next time another one stays.
    desk.pass(SECOND * 5);
    desk.sessions.end_others(&desk.id("d")).await.unwrap();
    desk.pass(SECOND * 5);
    assert_eq!(desk.known().await, ["d"]);
    assert!(is_refused(desk, "b", &documents[1]).await);
}

pub(super) async fn c11_what_ended_for_another_is_not_kept_later(desk: &Desk<'_>) {
    // A session that no index knows, and one that begins after the first call.
    let unknown = desk.fresh("unknown");
    desk.login("a").await;
    desk.pass(SECOND * 5);
    desk.sessions.end_others(&desk.id("a")).await.unwrap();
    desk.pass(SECOND * 5);
    assert!(is_refused(desk, "b", &unknown).await);
    let later = desk.login("c").await;
    desk.sessions.end_others(&desk.id("b")).await.unwrap();
    assert!(is_refused(desk, "b", &unknown).await, "it had ended before it was to stay");
    desk.sessions.end_others(&desk.id("b")).await.unwrap();
    assert!(is_refused(desk, "b", &unknown).await);
    assert!(is_refused(desk, "c", &later).await);
    // Its id is as good as any for one that begins now.
    desk.pass(SECOND);
    desk.login("b").await;
    desk.pass(SECOND * 5);
    desk.sessions.end_others(&desk.id("b")).await.unwrap();
    assert_eq!(desk.known().await, ["b"]);
}

pub(super) async fn the_one_that_stays_may_be_rotated(desk: &Desk<'_>) {
    desk.login("a").await;
    desk.login("b").await;
    desk.pass(SECOND * 5);
    desk.sessions.end_others(&desk.id("b")).await.unwrap();
    let new = desk.sessions.rotate(&desk.id("b")).await.unwrap().unwrap();
    assert_eq!(desk.known().await, [new.id.sid.as_str()]);
    assert!(!desk.is_alive("b").await);
}

/// The last one: it ends what other cases begin.
pub(super) async fn c12_everyone_can_be_ended(desk: &Desk<'_>) {
    let document = desk.login("s").await;
    desk.pass(SECOND * 5);
    desk.sessions.end_before(None, desk.now()).await.unwrap();
    desk.pass(SECOND * 5);
    assert!(!desk.is_alive("s").await);
    assert!(is_refused(desk, "s", &document).await);
    desk.login("new").await;
    assert!(desk.is_alive("new").await);
}

pub(super) async fn marks_combine_by_max_and_never_shrink(desk: &Desk<'_>) {
    desk.pass(SECOND * 60);
    let old = desk.fresh("old");
    desk.pass(SECOND * 60);
    desk.sessions.end_before(Some(&desk.user), desk.now()).await.unwrap();
    desk.sessions.end_before(Some(&desk.user), START).await.unwrap();
    desk.pass(SECOND * 60);
    assert!(is_refused(desk, "s", &old).await, "an earlier mark takes nothing back");
    assert!(!is_refused(desk, "t", &desk.fresh("t")).await);
}

pub(super) async fn a_mark_of_the_past_spares_what_began_after_it(desk: &Desk<'_>) {
    desk.login("old").await;
    desk.pass(SECOND * 5);
    let between = desk.now();
    desk.pass(SECOND * 5);
    desk.login("new").await;
    desk.sessions.end_before(Some(&desk.user), between).await.unwrap();
    assert_eq!(desk.known().await, ["new"]);
    assert!(!desk.is_alive("old").await);
}
