use futures_util::future::join_all;

use super::*;

pub(super) async fn what_is_put_is_kept_to_the_letter(desk: &Desk<'_>) {
    let text = r#"{ "b" : 1.00, "unknown": {"deep": [1, {}]}, "created_at":"2023-11-14T22:13:20", "a":"\u00e9" }"#;
    let document = Document::new(text).unwrap();
    let Put::Stored(stored) = desk.put("s", &document).await else { panic!("{}", desk.case) };
    assert_eq!(stored.document.as_str(), text);
    let session = desk.get("s").await.unwrap();
    assert_eq!(session.document.as_str(), text);
    assert_eq!(session.since, Timestamp::from_secs(1_700_000_000));
    let ttl = session.ttl.unwrap();
    assert!(ttl <= HOUR && ttl > HOUR - SECOND * 10, "{ttl:?}");
    let other = desk.fresh("another");
    desk.put("s", &other).await;
    assert_eq!(desk.get("s").await.unwrap().document, other);
}

pub(super) async fn c01_a_new_session_has_an_id_of_its_own(desk: &Desk<'_>) {
    let members = serde_json::json!({ "ip_address": "192.0.2.1", "session_id": "chosen by the caller" });
    let mut sids = Vec::new();
    for _ in 0..3 {
        let members = members.as_object().unwrap().clone();
        let put = desk.sessions.create(&desk.user, members, None).await.unwrap();
        let Put::Stored(session) = put else { panic!("{put:?}") };
        let sid = session.id.sid.as_str().to_owned();
        assert_eq!(sid.len(), 43, "32 bytes in base64url");
        let found = desk.get(&sid).await.unwrap();
        let document: serde_json::Value = serde_json::from_str(found.document.as_str()).unwrap();
        assert_eq!(document["session_id"], sid.as_str());
        assert_eq!(document["user_id"], desk.user.as_str());
        assert_eq!(document["ip_address"], "192.0.2.1");
        assert_eq!(document["created_at"], "2023-11-14T22:13:20.3Z");
        assert_eq!(document["expires_at"], "2023-11-14T23:13:20.3Z");
        assert!(!sids.contains(&sid));
        sids.push(sid);
    }
}

pub(super) async fn c05_an_unknown_id_makes_no_session(desk: &Desk<'_>) {
    let id = desk.id("made-up");
    assert_eq!(desk.sessions.get(&id).await.unwrap(), None);
    assert_eq!(desk.sessions.touch(&id, None).await.unwrap(), None);
    assert_eq!(desk.sessions.rotate(&id).await.unwrap(), None);
    let change = |document: &Document| Ok(document.clone());
    assert_eq!(desk.sessions.update(&id, change).await.unwrap(), Put::Changed);
    assert_eq!(desk.sessions.replace(&id, &desk.fresh("a"), &desk.fresh("b")).await.unwrap(), Put::Changed);
    assert!(!desk.is_alive("made-up").await);
    assert_eq!(desk.known().await, [""; 0]);
}

pub(super) async fn c08_a_session_that_is_not_touched_ends(desk: &Desk<'_>) {
    desk.login("s").await;
    desk.pass(HOUR - SECOND * 30);
    assert!(desk.is_alive("s").await);
    desk.pass(SECOND * 30);
    assert!(!desk.is_alive("s").await);
    assert_eq!(desk.known().await, [""; 0]);
    // It has run out and was not ended: a login of the same name is a new one.
    desk.login("s").await;
    assert!(desk.is_alive("s").await);
}

pub(super) async fn c08_idle_and_absolute_expiry_hold_together(desk: &Desk<'_>) {
    desk.login("s").await;
    let end = desk.now() + TERMS.max_lifetime;
    while desk.now() + SECOND * 600 < end {
        desk.pass(SECOND * 600);
        let session = desk.sessions.touch(&desk.id("s"), None).await.unwrap().expect("it is touched all the time");
        assert!(desk.now() + session.ttl.unwrap() <= end, "a touch goes beyond the cap");
    }
    desk.pass((end.since(desk.now())) - SECOND);
    assert!(desk.is_alive("s").await, "a second before the cap");
    desk.pass(SECOND);
    assert!(!desk.is_alive("s").await, "at the cap");
    assert_eq!(desk.sessions.touch(&desk.id("s"), None).await.unwrap(), None);
}

pub(super) async fn c08_a_session_cannot_be_stored_beyond_the_cap(desk: &Desk<'_>) {
    let document = desk.login("s").await;
    desk.pass(HOUR - SECOND);
    let put = desk.sessions.put(&desk.id("s"), &document, Some(HOUR * 100)).await.unwrap();
    let Put::Stored(session) = put else { panic!("{put:?}") };
    assert!(session.ttl.unwrap() <= HOUR * 3 + SECOND, "{:?}", session.ttl);
    desk.pass(HOUR * 3 + SECOND);
    assert!(!desk.is_alive("s").await);
    assert!(matches!(desk.put("s", &document).await, Put::Ended { .. }), "it began too long ago");
    assert!(!desk.is_alive("s").await);
}

pub(super) async fn a_touch_never_shortens_and_never_writes(desk: &Desk<'_>) {
    let document = desk.fresh("s");
    desk.sessions.put(&desk.id("s"), &document, Some(HOUR * 2)).await.unwrap();
    let touched = desk.sessions.touch(&desk.id("s"), Some(SECOND)).await.unwrap().unwrap();
    assert!(touched.ttl.unwrap() > HOUR, "{:?}", touched.ttl);
    let touched = desk.sessions.touch(&desk.id("s"), Some(HOUR * 3)).await.unwrap().unwrap();
    assert!(touched.ttl.unwrap() > HOUR * 2, "{:?}", touched.ttl);
    assert_eq!(desk.get("s").await.unwrap().document, document);
}

/// What is left of it after a request of its user, and whether that let it live on.
async fn visited(desk: &Desk<'_>, sid: &str) -> (Duration, bool) {
    let (session, slid) = desk.sessions.visit(&desk.id(sid)).await.unwrap().unwrap();
    (session.ttl.unwrap(), slid)
}

/// On a store with a clock of its own a little time passes by itself.
fn about(ttl: Duration, expected: Duration) -> bool {
    ttl <= expected && ttl + SECOND * 10 > expected
}

pub(super) async fn c08_a_request_lets_a_session_live_on_by_its_own_measure(desk: &Desk<'_>) {
    desk.login("usual").await;
    desk.sessions.put(&desk.id("short"), &desk.fresh("short"), Some(SECOND * 600)).await.unwrap();
    let says = |sid: &str, lifetime| {
        let (created, expires) = (write_time(desk.now()), write_time(desk.now() + lifetime));
        Document::new(format!(r#"{{"note":"{sid}","created_at":"{created}","expires_at":"{expires}"}}"#)).unwrap()
    };
    // An older client says it in the document, and stores it for that long.
    desk.sessions.put(&desk.id("says"), &says("says", SECOND * 900), Some(SECOND * 900)).await.unwrap();
    // Whoever says a week slides by no more than the terms: else idle sessions would stay.
    desk.sessions.put(&desk.id("long"), &says("long", HOUR * 168), Some(HOUR * 2)).await.unwrap();
    desk.pass(SECOND * 30);
    for sid in ["usual", "short", "says", "long"] {
        assert!(!visited(desk, sid).await.1, "{sid}: a write at every request");
    }
    desk.pass(SECOND * 400);
    let (ttl, slid) = visited(desk, "short").await;
    assert!(slid && about(ttl, SECOND * 600), "{ttl:?}");
    let (ttl, slid) = visited(desk, "says").await;
    assert!(slid && about(ttl, SECOND * 900), "{ttl:?}");
    let (ttl, slid) = visited(desk, "usual").await;
    assert!(slid && about(ttl, HOUR), "{ttl:?}");
    let (ttl, slid) = visited(desk, "long").await;
    assert!(!slid && about(ttl, HOUR * 2 - SECOND * 430), "{ttl:?}");
    desk.pass(SECOND * 599);
    assert!(desk.is_alive("short").await);
    desk.pass(SECOND);
    assert!(!desk.is_alive("short").await);
    assert_eq!(desk.sessions.visit(&desk.id("short")).await.unwrap(), None);
}

pub(super) async fn c08_what_it_was_stored_for_goes_with_it(desk: &Desk<'_>) {
    let first = desk.fresh("s");
    desk.sessions.put(&desk.id("s"), &first, Some(SECOND * 600)).await.unwrap();
    desk.sessions.replace(&desk.id("s"), &first, &desk.fresh("replaced")).await.unwrap();
    desk.pass(SECOND * 100);
    let new = desk.sessions.rotate(&desk.id("s")).await.unwrap().unwrap();
    desk.pass(SECOND * 100);
    let (ttl, slid) = visited(desk, new.id.sid.as_str()).await;
    assert!(slid && about(ttl, SECOND * 600), "{ttl:?}");
    // Stored again as usual, it slides as usual.
    desk.put(new.id.sid.as_str(), &desk.fresh("s")).await;
    desk.pass(SECOND * 400);
    let (ttl, slid) = visited(desk, new.id.sid.as_str()).await;
    assert!(slid && about(ttl, HOUR), "{ttl:?}");
}

pub(super) async fn a_session_that_does_not_say_counts_from_when_it_was_first_seen(desk: &Desk<'_>) {
    let ahead = write_time(desk.now() + HOUR * 9);
    for (sid, text) in [("none", "{}".to_owned()), ("ahead", format!(r#"{{"created_at":"{ahead}"}}"#))] {
        let document = Document::new(text).unwrap();
        desk.put(sid, &document).await;
        assert_eq!(desk.get(sid).await.unwrap().since, desk.now(), "{sid}");
    }
    let start = desk.now();
    for _ in 0..7 {
        desk.pass(SECOND * 1_800);
        // Storing it again does not make it younger.
        desk.put("none", &Document::new("{}").unwrap()).await;
        assert_eq!(desk.get("none").await.map(|session| session.since), Some(start));
        assert!(desk.sessions.touch(&desk.id("ahead"), None).await.unwrap().is_some());
    }
    desk.pass(SECOND * 1_800);
    assert!(!desk.is_alive("none").await);
    assert!(!desk.is_alive("ahead").await);
}

pub(super) async fn a_time_that_comes_one_day_makes_no_session_younger(desk: &Desk<'_>) {
    let start = desk.now();
    let ahead = Document::new(format!(r#"{{"created_at":"{}"}}"#, write_time(start + HOUR * 2))).unwrap();
    desk.put("s", &ahead).await;
    for _ in 0..7 {
        desk.pass(SECOND * 1_800);
        let session = desk.sessions.touch(&desk.id("s"), None).await.unwrap().unwrap();
        assert_eq!(session.since, start);
        let Put::Stored(session) = desk.put("s", &ahead).await else { panic!("{}", desk.case) };
        assert_eq!(session.since, start, "nor is it when it is stored again");
    }
    desk.pass(SECOND * 1_800);
    assert!(!desk.is_alive("s").await);
}

pub(super) async fn c09_one_too_many_ends_the_oldest(desk: &Desk<'_>) {
    let capped = desk.sessions.with_terms(Terms { max_per_user: Some(3), ..TERMS });
    for sid in ["a", "b", "c"] {
        capped.put(&desk.id(sid), &desk.fresh(sid), None).await.unwrap();
        desk.pass(SECOND * 5);
    }
    // The oldest is not the one that was touched longest ago.
    capped.touch(&desk.id("a"), Some(HOUR * 2)).await.unwrap().unwrap();
    assert_eq!(desk.known().await, ["c", "b", "a"]);
    capped.put(&desk.id("d"), &desk.fresh("d"), None).await.unwrap();
    assert_eq!(desk.known().await, ["d", "c", "b"]);
    assert!(!desk.is_alive("a").await);
    // Storing one that is there is not one more.
    capped.put(&desk.id("b"), &desk.fresh("b"), None).await.unwrap();
    assert_eq!(desk.known().await.len(), 3);
}

pub(super) async fn c09_a_login_ends_another_also_in_the_same_instant(desk: &Desk<'_>) {
    let capped = desk.sessions.with_terms(Terms { max_per_user: Some(1), ..TERMS });
    for _ in 0..8 {
        let put = capped.create(&desk.user, serde_json::Map::new(), None).await.unwrap();
        let Put::Stored(last) = put else { panic!("{put:?}") };
        assert_eq!(desk.known().await, [last.id.sid.as_str()]);
    }
}

pub(super) async fn c09_logins_at_once_leave_as_many_as_may_be(desk: &Desk<'_>) {
    let mut ids: Vec<SessionId> = Vec::new();
    for most in [1, 2, 3] {
        let capped = desk.sessions.with_terms(Terms { max_per_user: Some(most), ..TERMS });
        for _ in 0..8 {
            let logins = (0..5).map(|_| capped.create(&desk.user, serde_json::Map::new(), None));
            for put in join_all(logins).await {
                let Put::Stored(session) = put.unwrap() else { panic!("{}", desk.case) };
                ids.push(session.id);
            }
            let alive: Vec<_> = join_all(ids.iter().map(|id| capped.get(id))).await;
            let alive = alive.into_iter().filter(|found| found.as_ref().unwrap().is_some()).count();
            assert_eq!((alive, desk.known().await.len()), (most, most), "{}", desk.case);
        }
    }
}

pub(super) async fn c09_what_began_long_ago_is_stored_all_the_same(desk: &Desk<'_>) {
    let capped = desk.sessions.with_terms(Terms { max_per_user: Some(2), ..TERMS });
    let old = desk.fresh("old");
    desk.pass(SECOND * 60);
    for sid in ["a", "b"] {
        capped.put(&desk.id(sid), &desk.fresh(sid), None).await.unwrap();
        desk.pass(SECOND);
    }
    capped.put(&desk.id("old"), &old, None).await.unwrap();
    assert_eq!(desk.known().await, ["b", "old"]);
}

pub(super) async fn a_list_has_what_is_alive_the_newest_first(desk: &Desk<'_>) {
    for sid in ["a", "b", "c", "d"] {
        desk.login(sid).await;
        desk.pass(SECOND * 60);
    }
    desk.sessions.end(&desk.id("b")).await.unwrap();
    assert_eq!(desk.known().await, ["d", "c", "a"]);
    desk.sessions.touch(&desk.id("c"), Some(HOUR * 2)).await.unwrap();
    desk.pass(HOUR);
    assert_eq!(desk.known().await, ["c"]);
}

pub(super) async fn users_do_not_share_sessions(desk: &Desk<'_>) {
    desk.login("s").await;
    let other = UserId::new(format!("{}x", desk.user.as_str())).unwrap();
    let theirs = SessionId::new(other.as_str(), "s").unwrap();
    assert_eq!(desk.sessions.get(&theirs).await.unwrap(), None);
    desk.sessions.end(&theirs).await.unwrap();
    desk.sessions.end_all(&other).await.unwrap();
    assert!(desk.is_alive("s").await);
}

pub(super) async fn a_life_shorter_than_a_second_is_refused(desk: &Desk<'_>) {
    let error = desk.sessions.put(&desk.id("s"), &desk.fresh("s"), Some(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, crate::Error::Invalid(invalid) if invalid.field == "ttl"));
}
