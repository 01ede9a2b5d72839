use super::*;

fn counted(document: &Document) -> u64 {
    let value: serde_json::Value = serde_json::from_str(document.as_str()).unwrap();
    value["count"].as_u64().unwrap()
}

fn one_more(document: &Document) -> Result<Document, crate::Invalid> {
    let mut value: serde_json::Value = serde_json::from_str(document.as_str()).unwrap();
    value["count"] = (counted(document) + 1).into();
    Document::new(value.to_string())
}

pub(super) async fn two_writers_lose_nothing(desk: &Desk<'_>) {
    let created = write_time(desk.now());
    desk.put("s", &Document::new(format!(r#"{{"created_at":"{created}","count":0}}"#)).unwrap()).await;
    let id = desk.id("s");
    let writer = async || {
        for _ in 0..20 {
            let put = desk.sessions.update(&id, one_more).await.unwrap();
            assert!(matches!(put, Put::Stored(_)), "{put:?}");
        }
    };
    // Both in one task: they take turns at every round trip.
    let (mut a, mut b) = (Box::pin(writer()), Box::pin(writer()));
    let (mut a_done, mut b_done) = (false, false);
    std::future::poll_fn(|context| {
        a_done = a_done || a.as_mut().poll(context).is_ready();
        b_done = b_done || b.as_mut().poll(context).is_ready();
        if a_done && b_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(counted(&desk.get("s").await.unwrap().document), 40);
}

pub(super) async fn a_writer_is_told_that_another_was_faster(desk: &Desk<'_>) {
    let first = desk.login("s").await;
    let (second, third) = (desk.fresh("second"), desk.fresh("third"));
    assert!(matches!(desk.sessions.replace(&desk.id("s"), &first, &second).await.unwrap(), Put::Stored(_)));
    assert_eq!(desk.sessions.replace(&desk.id("s"), &first, &third).await.unwrap(), Put::Changed);
    assert_eq!(desk.get("s").await.unwrap().document, second);
}

pub(super) async fn a_replaced_session_keeps_its_expiry(desk: &Desk<'_>) {
    let first = desk.login("s").await;
    desk.pass(SECOND * 1_800);
    desk.sessions.replace(&desk.id("s"), &first, &desk.fresh("second")).await.unwrap();
    let ttl = desk.get("s").await.unwrap().ttl.unwrap();
    assert!(ttl <= SECOND * 1_800 && ttl > SECOND * 1_700, "{ttl:?}");
}

pub(super) async fn c03_a56_rotation_gives_a_new_id_and_kills_the_old(desk: &Desk<'_>) {
    let text = format!(r#"{{"session_id":"s","created_at":"{}","role":"user"}}"#, write_time(desk.now()));
    let document = Document::new(text).unwrap();
    desk.put("s", &document).await;
    desk.pass(SECOND * 60);
    let new = desk.sessions.rotate(&desk.id("s")).await.unwrap().unwrap();
    assert_ne!(new.id.sid.as_str(), "s");
    assert!(!desk.is_alive("s").await);
    assert!(matches!(desk.put("s", &document).await, Put::Ended { .. }), "the old id is dead for good");
    let found = desk.sessions.get(&new.id).await.unwrap().unwrap();
    let value: serde_json::Value = serde_json::from_str(found.document.as_str()).unwrap();
    assert_eq!(value["session_id"], new.id.sid.as_str());
    assert_eq!(value["role"], "user");
    assert_eq!(found.since, START, "a rotation makes no session younger");
    assert!(found.ttl.unwrap() <= HOUR - SECOND * 60, "nor does it live longer: {:?}", found.ttl);
    assert_eq!(desk.known().await, [new.id.sid.as_str()]);
    // And again, as when somebody logs in a second time on the same session.
    let newer = desk.sessions.rotate(&new.id).await.unwrap().unwrap();
    assert_eq!(desk.sessions.get(&new.id).await.unwrap(), None);
    assert_eq!(desk.known().await, [newer.id.sid.as_str()]);
}

pub(super) async fn c08_a_rotation_begins_no_new_life(desk: &Desk<'_>) {
    for (sid, ahead) in [("silent", None), ("ahead", Some(HOUR))] {
        let start = desk.now();
        let created = ahead.map(|ahead| format!(r#""created_at":"{}""#, write_time(start + ahead)));
        let document = Document::new(format!("{{{}}}", created.unwrap_or_default())).unwrap();
        let mut id = desk.id(sid);
        desk.sessions.put(&id, &document, Some(HOUR * 24)).await.unwrap();
        for _ in 0..3 {
            desk.pass(HOUR);
            let new = desk.sessions.rotate(&id).await.unwrap().expect("it is alive");
            assert_eq!(new.since, start, "{sid}");
            id = new.id;
            assert_eq!(desk.sessions.get(&id).await.unwrap().unwrap().since, start, "{sid}");
        }
        desk.pass(HOUR);
        assert_eq!(desk.sessions.get(&id).await.unwrap(), None, "{sid}: beyond the cap");
    }
}

pub(super) async fn c04_a_change_of_privilege_takes_a_new_id(desk: &Desk<'_>) {
    let with = |role: &str, note: &str| {
        let created = write_time(START);
        Document::new(format!(r#"{{"created_at":"{created}","role":"{role}","note":"{note}"}}"#)).unwrap()
    };
    let (user, admin) = (with("user", ""), with("admin", ""));
    let found = async |id: &SessionId| {
        let session = desk.sessions.get(id).await.unwrap().unwrap();
        let value: serde_json::Value = serde_json::from_str(session.document.as_str()).unwrap();
        (value["role"].clone(), value["note"].clone())
    };
    desk.put("s", &user).await;
    let put = desk.sessions.update(&desk.id("s"), |_| Ok(admin.clone())).await.unwrap();
    assert!(matches!(put, Put::Stored(_)), "{put:?}");
    let new = desk.sessions.rotate(&desk.id("s")).await.unwrap().unwrap();
    assert!(!desk.is_alive("s").await, "whoever knew the id before knows nothing now");
    assert_eq!(found(&new.id).await, ("admin".into(), "".into()));
    // A request that began before goes on with what it knew, and gets nowhere.
    let late = with("admin", "late");
    assert!(matches!(desk.put("s", &late).await, Put::Ended { .. }), "the old id is dead for good");
    assert!(!matches!(desk.sessions.replace(&desk.id("s"), &admin, &late).await.unwrap(), Put::Stored(_)));
    assert_eq!(desk.sessions.touch(&desk.id("s"), None).await.unwrap(), None);
    assert_eq!(found(&new.id).await, ("admin".into(), "".into()), "the new one is as it was");
    assert_eq!(desk.known().await, [new.id.sid.as_str()]);
}

pub(super) async fn c04_of_two_that_rotate_one_succeeds(desk: &Desk<'_>) {
    desk.login("s").await;
    let id = desk.id("s");
    let (mut a, mut b) = (Box::pin(desk.sessions.rotate(&id)), Box::pin(desk.sessions.rotate(&id)));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        for (future, answer) in [(&mut a, &mut first), (&mut b, &mut second)] {
            if answer.is_none()
                && let std::task::Poll::Ready(rotated) = future.as_mut().poll(context)
            {
                *answer = Some(rotated.unwrap());
            }
        }
        if first.is_some() && second.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!([first, second].into_iter().flatten().flatten().count(), 1);
    assert_eq!(desk.known().await.len(), 1);
}
