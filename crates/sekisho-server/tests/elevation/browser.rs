//! The page, used in a real Chromium.

use std::path::{Path, PathBuf};

use sekisho_elevation::{Layer, Point};
use sekisho_testkit::tiles::{TileServer, Trouble, ground};
use sekisho_testkit::{Browser, keys};
use serde_json::{Value, json};

use super::support::TestServer;
use super::{at, over};

const HINT: &str = "日本国内のサイクリングに特化した地形データを学習中！たくさん検索するとデータが蓄積され、次回からよりスムーズになります。";
const DONE: &str = "return document.getElementById('status').textContent.includes('プロファイルができました')";

/// A pass between two valleys, with folds on its flanks.
fn pass(point: Point) -> f64 {
    let along = (point.lon() - 138.0) / 0.2;
    let rise = 470.0 * (-((along - 0.62) / 0.2).powi(2)).exp() + 120.0 * (-((along - 0.22) / 0.08).powi(2)).exp();
    180.0 + rise + 26.0 * (along * 37.0).sin() + 9.0 * (along * 101.0).cos()
}

/// Along the valley road and over the pass, 18 km.
fn route() -> Vec<Point> {
    (0..=60).map(|step| at(35.3 + 0.004 * (f64::from(step) / 5.0).sin(), 138.0 + f64::from(step) / 300.0)).collect()
}

fn gpx(name: &str) -> String {
    let point = |point: &Point| format!("<trkpt lat=\"{}\" lon=\"{}\"/>", point.lat(), point.lon());
    let points: String = route().iter().map(point).collect();
    format!("<gpx version=\"1.1\"><trk><name>{name}</name><trkseg>{points}</trkseg></trk></gpx>")
}

fn mountains() -> (TileServer, TestServer) {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, pass));
    let server = over(&tiles, ", layers: [dem5a, dem]");
    (tiles, server)
}

fn url(server: &TestServer) -> String {
    format!("http://{}/elevation", server.addresses.gateway)
}

/// Where `cargo xtask screenshot` finds it.
fn picture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/elevation.png")
}

#[test]
fn a_person_drops_a_gpx_and_sees_the_profile() {
    let ((_tiles, server), dir) = (mountains(), tempfile::tempdir().unwrap());
    let file = dir.path().join("pass.gpx");
    std::fs::write(&file, gpx("峠を越えて湖へ")).unwrap();
    let browser = Browser::start(1_000, 1_340);
    browser.open(&url(&server));
    assert_eq!((browser.text("h1"), browser.text(".hint")), ("標高プロファイル".to_owned(), HINT.to_owned()));
    browser.drop_file("#drop", &file);
    browser.wait_for(DONE);

    let known = server.post("/v1/elevation/profile", json!({ "gpx": gpx("same") })).expect(200);
    let highest = route().iter().copied().map(pass).fold(f64::MIN, f64::max);
    assert!((known["highest"].as_f64().unwrap() - highest).abs() < 15.0, "{} is not about {highest}", known["highest"]);
    let whole = |value: &Value| format!("{:.0}", value.as_f64().unwrap());
    assert_eq!(browser.text("#name"), "峠を越えて湖へ");
    assert_eq!(browser.text("#highest"), format!("{}m", whole(&known["highest"])));
    let ascent = browser.text("#ascent");
    let (filtered, raw) = (whole(&known["ascent"]["filtered"]), whole(&known["ascent"]["raw"]));
    assert!(ascent.contains(&filtered) && ascent.contains(&raw), "{ascent}: {filtered}, {raw}");
    // The line goes as high as the ground does, and has the ground below it.
    let drawn = browser.run(
        "const line = document.querySelector('#chart .ridge').getBBox(); \
         return [line.width, line.height, document.querySelectorAll('#chart path').length]",
    );
    assert!(drawn[0].as_f64().unwrap() > 700.0 && drawn[1].as_f64().unwrap() > 100.0, "{drawn}");
    assert!(drawn[2].as_u64().unwrap() > 5, "{drawn}");
    // For those who do not see it.
    let (role, name) = browser.role_and_name("#chart");
    assert!(matches!(role.as_str(), "img" | "image"), "{role}");
    assert!(name.contains("峠を越えて湖へ") && name.contains(&format!("登り {filtered} m")), "{name}");
    assert_eq!(browser.role_and_name("#status").0, "status");
    assert!(browser.text("#tiers").starts_with("使用したタイル：メモリ "), "{}", browser.text("#tiers"));
    assert_eq!(browser.text("footer a"), "地理院タイル（標高タイル）を加工して作成");
    assert_eq!(
        browser.run("return document.querySelector('footer a').href"),
        "https://maps.gsi.go.jp/development/ichiran.html"
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // For the README: the place on top of the pass is chosen.
    browser.run(
        "const at = document.getElementById('at'); at.value = at.max * 0.62; at.dispatchEvent(new Event('input')); \
         document.activeElement.blur(); scrollTo({ top: 0, behavior: 'instant' })",
    );
    let shot = browser.screenshot();
    assert!(shot.len() > 10_000, "{} bytes", shot.len());
    std::fs::write(picture(), shot).unwrap();
}

#[test]
fn the_keyboard_is_enough_and_what_goes_wrong_is_said() {
    let (tiles, server) = mountains();
    let browser = Browser::start(420, 900);
    browser.open(&url(&server));
    let status = || browser.text("#status");
    let focused = || browser.run("return document.activeElement.id || document.activeElement.parentElement.id");
    let tabs = ["language", "file", "example", "paste"].map(|_| {
        browser.press(keys::TAB);
        focused()
    });
    assert_eq!(tabs, ["language", "file", "example", "paste"]);
    browser.press(keys::ENTER);
    browser.press(keys::TAB);
    assert_eq!(focused(), "text");
    browser.press("<gpx><trk></gpx>");
    browser.press(keys::TAB);
    browser.press(keys::ENTER);
    browser.wait_for("return document.getElementById('status').className === 'bad'");
    assert!(status().starts_with("このルートは読み込めませんでした：`gpx`: "), "{}", status());

    // The origin fails, the page says that it tries again, and then it succeeds.
    let points = gpx("&lt;b&gt; &amp; keys");
    browser.run(&format!("document.getElementById('text').value = {}", Value::from(points)));
    tiles.trouble(Trouble::TooMany(3));
    browser.press(keys::ENTER);
    browser.wait_for("return document.getElementById('status').textContent.includes('もう一度試します')");
    tiles.trouble(Trouble::None);
    // The server's clock stands still, and with it the seconds that it was told to wait.
    server.clock.advance(std::time::Duration::from_secs(4));
    // Who does not want to wait, or has waited too long, asks again.
    browser.press(keys::ENTER);
    browser.wait_for(DONE);
    assert_eq!(focused(), "name", "whoever does not see it is brought there");
    assert_eq!(browser.text("#name"), "<b> & keys");
    browser.press(keys::TAB);
    assert_eq!(focused(), "at");
    let before = browser.text("#here");
    browser.press(keys::RIGHT);
    let after = browser.text("#here");
    assert!(before != after && after.starts_with("10 m 地点：標高 "), "{before} {after}");
    assert_eq!(browser.run("return document.getElementById('at').getAttribute('aria-valuetext')"), after);

    browser.click("#language");
    assert_eq!(
        (browser.text("h1"), browser.run("return document.documentElement.lang")),
        ("Elevation profile".to_owned(), json!("en"))
    );
    assert!(status().starts_with("The profile is ready. 18."), "{}", status());
    // A file can be chosen as well, and has its own name if its way has none.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Chosen.gpx");
    std::fs::write(&file, gpx("")).unwrap();
    browser.choose_file("#file", &file);
    browser.wait_for("return document.getElementById('name').textContent === 'Chosen'");
    // On a phone nothing is cut off.
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= innerWidth"), true);
}
