use sekisho_elevation::Layer;
use sekisho_testkit::tiles::{TileServer, ground};
use serde_json::{Value, json};

use super::support::TestServer;
use super::{asked, assert_metres, at, half_surveyed, over, slope};

#[test]
fn a_place_has_the_height_of_the_first_survey_that_knows_its_pixel() {
    let tiles = TileServer::start(half_surveyed());
    let server = over(&tiles, "");
    let west = server.get("/v1/elevation?lat=35.1&lon=138.4999").expect(200);
    assert_metres(&west["elevation"], 699.9);
    assert_eq!((&west["lat"], &west["lon"]), (&json!(35.1), &json!(138.4999)));
    assert_eq!((&west["source"], &west["zoom"]), (&json!("dem5a"), &json!(15)));
    // The same tile of `dem5a` goes on with holes.
    let east = server.get("/v1/elevation?lat=35.1&lon=138.5001").expect(200);
    assert_metres(&east["elevation"], 730.1);
    assert_eq!((&east["source"], &east["zoom"]), (&json!("dem"), &json!(14)));
}

#[test]
fn heights_are_blended_across_borders_of_tiles() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, "");
    // Around the border of two tiles of zoom 15, a hundredth of a pixel apart.
    let border = 138.0 + 360.0 / f64::from(1 << 15) * 7.0;
    let border = (border / (360.0 / f64::from(1 << 15))).round() * (360.0 / f64::from(1 << 15));
    let near: Vec<f64> = (-20..=20).map(|step| border + f64::from(step) * 4.3e-7).collect();
    let locations: Vec<Value> = near.iter().map(|lon| json!({ "latitude": 35.2, "longitude": lon })).collect();
    let answer = server.post("/api/v1/lookup", json!({ "locations": locations })).expect(200);
    for (lon, result) in near.iter().zip(answer["results"].as_array().unwrap()) {
        assert_metres(&result["elevation"], slope()(at(35.2, *lon)));
    }
    let asked: Vec<_> = asked(&tiles).into_iter().filter(|served| served.status == 200).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
}

#[test]
fn tiles_come_from_memory_the_second_time_and_the_answer_says_so() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, ", layers: [dem5a]");
    let first = server.get("/v1/elevation?lat=35.25&lon=138.25");
    assert_eq!(
        first.header("cache-status"),
        "sekisho-elevation; fwd=miss; detail=\"memory=0 redis=0 origin=1 stale=0\""
    );
    let again = server.get("/v1/elevation?lat=35.25&lon=138.25");
    assert_eq!(again.header("cache-status"), "sekisho-elevation; hit; detail=\"memory=1 redis=0 origin=0 stale=0\"");
    assert_eq!(first.expect(200), again.expect(200));
    let paths: Vec<_> =
        asked(&tiles).into_iter().map(|served| served.path).filter(|path| path.contains("_png/15/28967")).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
}

#[test]
fn text_tiles_say_the_same() {
    let tiles = TileServer::start(half_surveyed());
    let server = over(&tiles, ", format: text");
    for lon in ["138.4999", "138.5001"] {
        let text = server.get(&format!("/v1/elevation?lat=35.1&lon={lon}")).expect(200);
        let png = over(&tiles, "").get(&format!("/v1/elevation?lat=35.1&lon={lon}")).expect(200);
        assert_eq!(text, png);
    }
    assert!(tiles.served().iter().any(|served| served.path.starts_with("/xyz/dem5a/15/") && served.status == 200));
}

#[test]
fn where_there_is_nothing_the_height_is_null_and_abroad_nobody_is_asked() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, ", layers: [dem]");
    let sea = server.get("/v1/elevation?lat=35&lon=138").expect(200);
    assert_eq!(sea, json!({ "lat": 35.0, "lon": 138.0, "elevation": null, "source": null, "zoom": null }));
    assert_eq!(asked(&tiles).len(), 1);
    let paris = server.get("/v1/elevation?lat=48.85&lon=2.35").expect(200);
    assert_eq!(paris["elevation"], Value::Null);
    assert_eq!(asked(&tiles).len(), 0);
}

const GPX: &str = r#"<gpx version="1.1"><trk><name>East</name><trkseg>
    <trkpt lat="35.3" lon="138.20"><ele>9999</ele></trkpt><trkpt lat="35.3" lon="138.24"/></trkseg></trk></gpx>"#;

#[test]
fn a_profile_adds_up_in_every_form() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, "");
    let gpx = server.post("/v1/elevation/profile", json!({ "gpx": GPX })).expect(200);
    assert_metres(&gpx["ascent"]["raw"], 40.0);
    assert_metres(&gpx["ascent"]["filtered"], 40.0);
    assert_eq!((&gpx["descent"]["filtered"], &gpx["missing"], &gpx["seams"]), (&json!(0.0), &json!(0), &json!(0)));
    assert_metres(&gpx["lowest"], 400.0);
    assert_metres(&gpx["highest"], 440.0);
    let length = at(35.3, 138.2).distance_m(at(35.3, 138.24));
    assert!((gpx["distance"].as_f64().unwrap() - length).abs() < 0.1, "{}", gpx["distance"]);
    assert_eq!(gpx["parameters"], json!({ "spacing": 10.0, "hysteresis": 5.0, "smoothing": 0.0 }));
    assert!(gpx["points"].as_array().unwrap().iter().all(|point| point["source"] == "dem5a"));
    assert!(gpx["tiles"]["origin"].as_u64().unwrap() > 0);

    let points = json!([{ "lat": 35.3, "lon": 138.2 }, { "lat": 35.3, "lon": 138.24 }]);
    let polyline = "_pmvE_eojY?_yF";
    for asked in [json!({ "points": points }), json!({ "polyline": polyline })] {
        let same = server.post("/v1/elevation/profile", asked).expect(200);
        for member in ["distance", "ascent", "descent", "lowest", "highest", "points"] {
            assert_eq!(same[member], gpx[member], "{member}");
        }
        assert_eq!(same["tiles"]["origin"], 0);
    }
}

#[test]
fn ripples_count_only_in_the_raw_ascent() {
    let top = at(35.3, 138.3);
    let cone = ground::cone(top, 900.0, 0.1);
    // Every other thousandth of a degree stands two metres higher.
    let rippled =
        move |point: sekisho_elevation::Point| cone(point) + f64::from((point.lon() * 1_000.0) as i64 % 2 == 0) * 2.0;
    let tiles = TileServer::start(ground::only(Layer::Dem5a, rippled));
    let server = over(&tiles, "");
    let points = json!([{ "lat": 35.3, "lon": 138.27 }, { "lat": 35.3, "lon": 138.33 }]);
    let profile = server.post("/v1/elevation/profile", json!({ "points": points })).expect(200);
    let climb = 0.1 * top.distance_m(at(35.3, 138.27));
    let number = |value: &Value| value.as_f64().unwrap();
    for filtered in [&profile["ascent"]["filtered"], &profile["descent"]["filtered"]] {
        assert!((number(filtered) - climb).abs() < 5.0, "{filtered} is not {climb}");
    }
    assert!(number(&profile["ascent"]["raw"]) > climb + 15.0, "{}", profile["ascent"]["raw"]);
}

#[test]
fn open_elevations_clients_are_understood() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, "");
    let got = server.get("/api/v1/lookup?locations=35.3,138.2|48.85,2.35").expect(200);
    assert_metres(&got["results"][0]["elevation"], 400.0);
    assert_eq!(got["results"][1], json!({ "latitude": 48.85, "longitude": 2.35, "elevation": null }));
    let locations = json!([{ "latitude": 35.3, "longitude": 138.2 }, { "latitude": 48.85, "longitude": 2.35 }]);
    assert_eq!(server.post("/api/v1/lookup", json!({ "locations": locations })).expect(200), got);
    for (bad, why) in [
        (server.get("/api/v1/lookup?locations=1,2,3"), "location 1 is not `latitude,longitude`"),
        (server.get("/api/v1/lookup"), "missing field `locations`"),
        (server.post("/api/v1/lookup", json!({ "locations": [] })), "there are no locations"),
    ] {
        assert_eq!(bad.expect(400), json!({ "error": why }));
    }
    assert!(server.post("/api/v1/lookup", "{").expect(400)["error"].as_str().unwrap().contains("not JSON"));
}

#[test]
fn both_listeners_answer_and_clients_have_a_limit() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, "");
    let path = "/v1/elevation?lat=35.3&lon=138.2";
    for left in (0..60).rev() {
        let reply = server.gateway("GET", path, &[]);
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, left.to_string().as_str()));
    }
    let denied = server.gateway("GET", path, &[]);
    assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, json!(["minute"])));
    let profile = r#"{"points":[{"lat":35.3,"lon":138.2},{"lat":35.3,"lon":138.2001}]}"#;
    let json = [("content-type", "application/json")];
    assert_eq!(server.send_to_gateway("POST", "/v1/elevation/profile", &json, profile).status, 429);
    assert_eq!(server.gateway("GET", "/api/v1/lookup?locations=35.3,138.2", &[]).status, 429);
    assert_eq!(server.gateway("GET", "/elevation", &[]).status, 200, "looking at the page is free");
    assert_eq!(server.get(path).status, 200, "trusted callers have none");
}

#[test]
fn a_policy_of_ones_own_is_charged_instead() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let policies =
        "policies: { hills: { subject: ip, rules: [{ name: two, algorithm: fixed_window, limit: 2, window: 60s }] } }";
    let server = TestServer::start(&format!("{policies}\n{}", super::config(&tiles, ", policy: hills")));
    let statuses = [(); 3].map(|()| server.gateway("GET", "/v1/elevation?lat=35.3&lon=138.2", &[]).status);
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(server.get("/v1/policies").expect(200)["policies"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_answered_says_why_and_asks_nobody() {
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope()));
    let server = over(&tiles, "");
    let field = |path: &str| server.get(path).expect(400)["field"].clone();
    assert_eq!(field("/v1/elevation?lat=91&lon=138"), "lat");
    assert_eq!(field("/v1/elevation?lat=35"), "lon");
    assert_eq!(field("/v1/elevation?lat=35&lon=138&zoom=3"), "zoom");
    let refused =
        |body: Value| server.post("/v1/elevation/profile", body).expect(400)["detail"].as_str().unwrap().to_owned();
    assert_eq!(refused(json!({})), "give one of `points`, `polyline` and `gpx`");
    assert!(
        refused(json!({ "gpx": "<gpx><trk>" })).starts_with("`gpx`: "),
        "{}",
        refused(json!({ "gpx": "<gpx><trk>" }))
    );
    let across = json!([{ "lat": 31.0, "lon": 130.5 }, { "lat": 45.5, "lon": 141.9 }]);
    assert!(refused(json!({ "points": across })).contains("one request may touch 1000"));
    let long = "x".repeat(9 << 20);
    assert_eq!(server.post("/v1/elevation/profile", json!({ "gpx": long })).status, 413);
    let get = server.get("/v1/elevation/profile");
    assert_eq!((get.status, get.header("allow")), (405, "POST"));
    let delete = server.gateway("DELETE", "/v1/elevation", &[]);
    assert_eq!((delete.status, delete.header("allow")), (405, "GET,HEAD"));
    assert_eq!(asked(&tiles), vec![]);
}

#[test]
fn without_the_section_nothing_is_served() {
    let server = TestServer::start("{}");
    assert!(server.get("/v1/elevation?lat=35&lon=138").expect(404)["detail"].as_str().unwrap().contains("`elevation`"));
    for path in ["/elevation", "/v1/elevation", "/api/v1/lookup"] {
        assert_eq!(server.gateway("GET", path, &[]).status, 404, "{path}");
    }
}

#[test]
fn what_is_wrong_with_a_place_is_told_by_the_name_it_was_asked_with() {
    let server = over(&TileServer::start(half_surveyed()), "");
    for (query, field, detail) in [
        ("lat=99&lon=138", "lat", "lat is 99, which is not a number from -90 to 90"),
        ("lat=35&lon=-181", "lon", "lon is -181, which is not a number from -180 to 180"),
    ] {
        let refused = server.get(&format!("/v1/elevation?{query}")).expect(400);
        assert_eq!((&refused["field"], &refused["detail"]), (&json!(field), &json!(detail)));
    }
}
