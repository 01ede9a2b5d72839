//! Nothing inside is asked, however it is spelled and whoever leads there.

use super::*;

/// A server that must not be asked, on an address that is not let through.
async fn forbidden() -> Origin {
    Origin::start_at(ELSEWHERE, |_| "a secret".into_response()).await
}

#[tokio::test]
async fn a41_no_spelling_of_an_address_is_asked() {
    let (inside, crawl) = (forbidden().await, Crawl::start());
    let port = inside.address.port();
    for host in [
        "127.0.0.2",
        "2130706434",
        "0x7f000002",
        "017700000002",
        "0x7f.0.0.2",
        "0177.0.0.2",
        "127.2",
        "127.0.2",
        "0x7F.0x0.0x2",
        "127.0.0.2.",
        "[::ffff:127.0.0.2]",
        "[::ffff:7f00:2]",
        "[0:0:0:0:0:ffff:7f00:0002]",
        "[64:ff9b::7f00:2]",
        "[2002:7f00:2::]",
        "[::7f00:2]",
        "0.0.0.0",
        "0",
        "[::]",
        "[::1]",
        "10.0.0.1",
        "0xa000001",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::ffff:169.254.169.254]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "100.100.100.200",
        "192.168.1.1",
        "172.16.0.1",
        "１２７.０.０.２",
        "%31%32%37.0.0.2",
    ] {
        let fetched = crawl.fetch(&format!("http://{host}:{port}/")).await;
        assert_eq!((reason(&fetched), fetched.status), ("address_refused", None), "{host}: {fetched:?}");
        let charged = fetched.final_url.host_str().unwrap();
        assert_eq!(crawl.spent(charged.trim_matches(['[', ']'])).await, (0, 0), "{host}");
    }
    assert_eq!(inside.asked().len(), 0);
}

#[tokio::test]
async fn a41_names_that_lead_inside_are_not_followed() {
    let (inside, crawl) = (forbidden().await, Crawl::start());
    let metadata: IpAddr = "169.254.169.254".parse().unwrap();
    let mapped: IpAddr = "::ffff:127.0.0.2".parse().unwrap();
    crawl.names.lead("a.test", &[&[ELSEWHERE]]);
    crawl.names.lead("b.test", &[&[LOOPBACK, ELSEWHERE]]);
    crawl.names.lead("c.test", &[&[metadata]]);
    crawl.names.lead("d.test", &[&[mapped]]);
    crawl.names.lead("localhost", &[&[ELSEWHERE]]);
    for host in ["a.test", "b.test", "c.test", "d.test", "localhost"] {
        assert_eq!(reason(&crawl.fetch(&inside.url(host, "/")).await), "address_refused", "{host}");
        assert_eq!(crawl.spent(host).await, (0, 0), "{host}");
    }
    assert_eq!(inside.asked().len(), 0);
}

#[tokio::test]
async fn a42_f59_a_name_that_changes_its_mind_gains_nothing() {
    let (inside, crawl) = (forbidden().await, Crawl::start());
    // Good when it is looked at, bad when it is connected to.
    crawl.names.lead("a.test", &[&[LOOPBACK], &[ELSEWHERE]]);
    assert_eq!(reason(&crawl.fetch(&inside.url("a.test", "/")).await), "address_refused");
    assert_eq!((inside.asked().len(), crawl.spent("a.test").await), (0, (0, 0)));

    // Bad only after there is a connection that could be used again.
    let outside = Origin::start(|_| "page".into_response()).await;
    assert!(crawl.fetch(&outside.url("b.test", "/1")).await.ok);
    crawl.names.lead("b.test", &[&[ELSEWHERE]]);
    assert_eq!(reason(&crawl.wait_for(&outside.url("b.test", "/2")).await), "address_refused");
    assert_eq!(outside.log_of("b.test").len(), 2);
}

#[tokio::test]
async fn a43_f58_redirects_do_not_lead_inside() {
    let inside = forbidden().await;
    let port = inside.address.port();
    let origin = Origin::start(move |asked| match asked.path.as_str() {
        "/robots.txt" if asked.host == "robots.test" => redirect(&format!("http://127.0.0.2:{port}/robots.txt")),
        "/robots.txt" => status(404),
        "/literal" => redirect(&format!("http://127.0.0.2:{port}/")),
        "/decimal" => redirect(&format!("//2130706434:{port}/")),
        _ => redirect(&format!("http://inside.test:{port}/")),
    })
    .await;
    let crawl = Crawl::start();
    crawl.names.lead("inside.test", &[&[ELSEWHERE]]);
    for path in ["/literal", "/decimal", "/name"] {
        let fetched = crawl.wait_for(&origin.url("a.test", path)).await;
        assert_eq!(reason(&fetched), "address_refused", "{path}");
        assert_eq!(fetched.final_url.port(), Some(port), "{path}");
    }
    // A robots.txt that cannot be read forbids everything.
    assert_eq!(reason(&crawl.wait_for(&origin.url("robots.test", "/")).await), "robots_disallowed");
    assert_eq!(inside.asked().len(), 0);
    assert_eq!((crawl.spent("127.0.0.2").await, crawl.spent("inside.test").await), ((0, 0), (0, 0)));
    assert_eq!(crawl.spent("a.test").await, (4, 0));
}
