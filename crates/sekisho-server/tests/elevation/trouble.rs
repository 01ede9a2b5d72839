//! What goes wrong at the origin.

use std::time::Duration;

use sekisho_elevation::{Layer, Tile};
use sekisho_testkit::tiles::{TileServer, Trouble, ground};
use serde_json::{Value, json};

use super::support::{TestServer, until};
use super::{asked, assert_metres, over, slope};

const PLACE: &str = "/v1/elevation?lat=35.3&lon=138.2";

fn one_layer(more: &str) -> (TileServer, TestServer) {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, &format!(", layers: [dem5a]{more}"));
    // The first question of the server is about another place, and must not meet the trouble.
    until(|| !tiles.served().is_empty());
    (tiles, server)
}

#[track_caller]
fn assert_unavailable(server: &TestServer, seconds: &str) {
    let reply = server.get(PLACE);
    assert_eq!((reply.status, reply.header("retry-after")), (503, seconds), "{}", reply.text);
    assert_eq!(reply.json()["type"], "urn:sekisho:problem:tiles-unavailable");
}

#[test]
fn what_is_no_tile_is_an_error_and_not_kept() {
    let small = {
        // A PNG indeed, but of one pixel.
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&[0, 0, 0]).unwrap();
        bytes
    };
    let mut cut = Tile::from_fn(|x, y| Some(f64::from(x) + f64::from(y))).to_png();
    cut.truncate(cut.len() / 2);
    let long = vec![b'1'; 2 << 20];
    for bytes in [small, cut, b"<Error><Code>AccessDenied</Code></Error>".to_vec(), Vec::new(), long] {
        let (tiles, server) = one_layer("");
        tiles.trouble(Trouble::Bytes(bytes));
        assert_unavailable(&server, "1");
        tiles.trouble(Trouble::None);
        server.clock.advance(Duration::from_secs(2));
        assert_metres(&server.get(PLACE).expect(200)["elevation"], 400.0);
    }
}

#[test]
fn a_missing_tile_is_a_hole_and_remembered_as_one() {
    let (tiles, server) = one_layer(", missing_for: 1d");
    tiles.trouble(Trouble::Missing);
    assert_eq!(server.get(PLACE).expect(200)["elevation"], Value::Null);
    tiles.trouble(Trouble::None);
    assert_eq!(server.get(PLACE).expect(200)["elevation"], Value::Null);
    assert_eq!(asked(&tiles).len(), 1);
    server.clock.advance(Duration::from_secs(86_401));
    assert_metres(&server.get(PLACE).expect(200)["elevation"], 400.0);
}

#[test]
fn an_origin_that_wants_to_be_left_alone_is() {
    let (tiles, server) = one_layer("");
    tiles.trouble(Trouble::TooMany(7));
    assert_unavailable(&server, "7");
    tiles.trouble(Trouble::None);
    assert_unavailable(&server, "7");
    assert_eq!(asked(&tiles).len(), 1);
    server.clock.advance(Duration::from_secs(8));
    assert_metres(&server.get(PLACE).expect(200)["elevation"], 400.0);
}

#[test]
fn a_slow_origin_costs_its_time_out() {
    let (tiles, server) = one_layer(", timeout: 300ms");
    tiles.trouble(Trouble::Silence);
    assert_unavailable(&server, "1");
    tiles.trouble(Trouble::None);
    server.clock.advance(Duration::from_secs(2));
    // On a busy machine the next may be slow as well.
    until(|| {
        server.clock.advance(Duration::from_secs(2));
        server.get(PLACE).status == 200
    });
}

#[test]
fn an_old_tile_stands_in_for_one_that_cannot_be_had() {
    let (tiles, server) = one_layer(", fresh_for: 1h, ttl: 30d");
    let fresh = server.get(PLACE).expect(200);
    server.clock.advance(Duration::from_secs(86_400));
    tiles.trouble(Trouble::Status(500));
    let stale = server.get(PLACE);
    assert!(stale.header("cache-status").ends_with("origin=0 stale=1\""), "{:?}", stale.headers);
    assert_eq!(stale.expect(200), fresh);
}

#[test]
fn an_unchanged_tile_moves_no_bytes() {
    let (tiles, server) = one_layer(", fresh_for: 1h, ttl: 30d");
    let before = server.get(PLACE).expect(200);
    server.clock.advance(Duration::from_secs(86_400));
    assert_eq!(server.get(PLACE).expect(200), before);
    // Whoever can be answered with an old one does not wait long for the origin, so on a busy machine it comes later.
    let mut statuses = Vec::new();
    until(|| {
        statuses.extend(asked(&tiles).iter().map(|served| served.status));
        statuses.len() == 2
    });
    assert_eq!(statuses, [200, 304]);
    assert_eq!(server.get(PLACE).expect(200), before);
    // A new survey has another `ETag`.
    tiles.resurvey(ground::only(Layer::Dem5a, |point| slope()(point) + 1.0));
    server.clock.advance(Duration::from_secs(86_400));
    until(|| server.get(PLACE).expect(200)["elevation"] == 401.0);
}

#[test]
fn one_bad_tile_spoils_a_profile_rather_than_its_truth() {
    let (tiles, server) = one_layer("");
    let points = json!([{ "lat": 35.3, "lon": 138.2 }, { "lat": 35.3, "lon": 138.21 }]);
    tiles.trouble(Trouble::Status(500));
    assert_eq!(server.post("/v1/elevation/profile", json!({ "points": points })).status, 503);
    let lookup = server.get("/api/v1/lookup?locations=35.3,138.2");
    assert_eq!(lookup.status, 503);
}
