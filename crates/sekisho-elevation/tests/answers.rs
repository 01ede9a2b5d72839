//! Questions and answers of `/v1/elevation` in JSON.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_elevation::answers::{HeightAnswer, ProfileAnswer, ProfileRequest};
use sekisho_elevation::{Elevation, Height, Layer, Point, Settings};
use serde_json::{Value, json};
use support::{Ground, now};

fn request(body: Value) -> ProfileRequest {
    serde_json::from_value(body).unwrap()
}

#[test]
fn a_height() {
    let point = Point::new(35.688533, 137.466431).unwrap();
    let found = Height { metres: 1_187.161_7, layer: Layer::Dem10b };
    assert_eq!(
        serde_json::to_string(&HeightAnswer::new(point, Some(found))).unwrap(),
        r#"{"lat":35.688533,"lon":137.466431,"elevation":1187.16,"source":"dem","zoom":14}"#
    );
    assert_eq!(
        serde_json::to_string(&HeightAnswer::new(point, None)).unwrap(),
        r#"{"lat":35.688533,"lon":137.466431,"elevation":null,"source":null,"zoom":null}"#
    );
}

#[test]
fn a_profile_of_each_form_of_a_way() {
    let ground = Ground::new(|layer, _| (layer == Layer::Dem5b).then_some(12.345));
    let points = json!([{"lat": 35.0, "lon": 139.0}, {"lat": 35.0, "lon": 139.0001}]);
    let gpx = "<gpx><rte><rtept lat='35' lon='139'/><rtept lat='35' lon='139.0001'/></rte></gpx>";
    for way in [json!({"points": points}), json!({"polyline": "_}rtE_mkoY?S"}), json!({"gpx": gpx})] {
        let request = request(way);
        let profile =
            now(Elevation::new(&ground).profile(&request.line().unwrap(), request.settings().unwrap())).unwrap();
        let answer = serde_json::to_value(ProfileAnswer::from(&profile)).unwrap();
        let end = json!({"distance": 9.11, "lat": 35.0, "lon": 139.0001, "elevation": 12.35, "source": "dem5b"});
        assert_eq!(
            answer,
            json!({
                "distance": 9.11,
                "ascent": {"raw": 0.0, "filtered": 0.0},
                "descent": {"raw": 0.0, "filtered": 0.0},
                "lowest": 12.35,
                "highest": 12.35,
                "parameters": {"spacing": 10.0, "hysteresis": 5.0, "smoothing": 0.0},
                "seams": 0,
                "missing": 0,
                "points": [{"distance": 0.0, "lat": 35.0, "lon": 139.0, "elevation": 12.35, "source": "dem5b"}, end],
                "attribution": "地理院タイル（標高タイル）を加工して作成",
            })
        );
    }
}

#[test]
fn settings_are_taken_over() {
    let asked = request(json!({"spacing": 25, "hysteresis": 0, "smoothing": 100.5})).settings().unwrap();
    let expected = Settings::default().with_spacing(25.0).unwrap().with_hysteresis(0.0).unwrap();
    assert_eq!(asked, expected.with_smoothing(100.5).unwrap());
    assert_eq!(request(json!({"as_given": true})).settings().unwrap(), Settings::default().as_given());
}

#[test]
fn what_cannot_be_answered_says_why() {
    let no_line = |body| request(body).line().unwrap_err().to_string();
    let one = json!([{"lat": 1, "lon": 2}]);
    assert_eq!(no_line(json!({})), "give one of `points`, `polyline` and `gpx`");
    assert_eq!(no_line(json!({"points": one, "gpx": ""})), "give one of `points`, `polyline` and `gpx`");
    assert_eq!(no_line(json!({"points": []})), "`points`: there are no points");
    assert_eq!(
        no_line(json!({"points": [{"lat": 1, "lon": 2}, {"lat": 91, "lon": 2}]})),
        "`points`: point 2: latitude is 91, which is not a number from -90 to 90"
    );
    assert_eq!(no_line(json!({"points": one, "precision": 5})), "`precision` belongs to a `polyline`");
    assert_eq!(no_line(json!({"polyline": "_p~iF", "precision": 7})), "`precision` is 7, which is neither 5 nor 6");
    assert_eq!(no_line(json!({"polyline": "_"})), "`polyline`: not an encoded polyline: it is cut off");
    assert_eq!(no_line(json!({"gpx": "<html/>"})), "`gpx`: line 1, column 1: this is not GPX: it begins with `html`");
    let no_settings = |body| request(body).settings().unwrap_err().to_string();
    assert_eq!(no_settings(json!({"spacing": 10, "as_given": true})), "`spacing` and `as_given` exclude each other");
    assert_eq!(
        no_settings(json!({"hysteresis": -1})),
        "`hysteresis` is -1, which is not a number of metres from 0 to 1000"
    );
    assert!(serde_json::from_value::<ProfileRequest>(json!({"spaceing": 10})).is_err());
}
