//! GPX files as devices write them, and files that are wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;
use sekisho_elevation::{Line, MAX_GPX_BYTES, MAX_POINTS};

/// As a device writes it: a prefix, extensions, heights, a waypoint, two segments and a route.
const RIDE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<gpx version="1.1" creator="device" xmlns="http://www.topografix.com/GPX/1/1" xmlns:x="http://example.com/x">
  <metadata><author><name>Somebody</name></author><time>2026-01-01T00:00:00Z</time></metadata>
  <wpt lat="1" lon="2"><name>Not on the way</name></wpt>
  <trk>
    <name>峠 &amp; <![CDATA[<川>]]>&#x21;</name>
    <trkseg>
      <trkpt lat="35.1" lon="139.1"><ele>12.3</ele><extensions><x:hr>120</x:hr></extensions></trkpt>
      <trkpt lon='139.2' lat=' 35.2 '/>
    </trkseg>
    <trkseg></trkseg>
    <trkseg><trkpt lat="35.3" lon="139.3"/></trkseg>
  </trk>
  <rte><name>Another</name><rtept lat="-35.4" lon="-139.4"></rtept></rte>
</gpx>
"#;

fn wrong(text: &str) -> String {
    Line::from_gpx(text.as_bytes()).unwrap_err().to_string()
}

fn track(inside: &str) -> String {
    format!("<gpx>\n<trk>\n<trkseg>{inside}</trkseg></trk></gpx>")
}

#[test]
fn tracks_and_routes_are_pieces() {
    let line = Line::from_gpx(RIDE.as_bytes()).unwrap();
    let pieces: Vec<Vec<(f64, f64)>> =
        line.pieces().iter().map(|piece| piece.iter().map(|point| (point.lat(), point.lon())).collect()).collect();
    assert_eq!(pieces, [vec![(35.1, 139.1), (35.2, 139.2)], vec![(35.3, 139.3)], vec![(-35.4, -139.4)]]);
    assert_eq!(line.name(), Some("峠 & <川>!"));
    let marked = format!("\u{feff}{}", RIDE.replace('\n', "\r\n"));
    assert_eq!(Line::from_gpx(marked.as_bytes()).unwrap(), line);
    let prefixed = r#"<g:gpx xmlns:g="x"><g:trk><g:trkseg><g:trkpt lat="1" lon="2"/></g:trkseg></g:trk></g:gpx>"#;
    assert_eq!(Line::from_gpx(prefixed.as_bytes()).unwrap().pieces()[0].len(), 1);
}

#[test]
fn coordinates_that_are_none_are_refused_with_their_place() {
    assert_eq!(wrong(&track("\n  <trkpt lat='x' lon='1'/>")), "line 4, column 3: `lat` is `x`, which is not a number");
    assert_eq!(wrong(&track("<trkpt lat='1,5' lon='1'/>")), "line 3, column 9: `lat` is `1,5`, which is not a number");
    assert_eq!(wrong(&track("<trkpt lon='1'/>")), "line 3, column 9: a point without `lat`");
    for (lat, says) in [
        ("NaN", "latitude is NaN, which is not a number from -90 to 90"),
        ("inf", "latitude is inf, which is not a number from -90 to 90"),
        ("-90.01", "latitude is -90.01, which is not a number from -90 to 90"),
    ] {
        assert_eq!(wrong(&track(&format!("峠<trkpt lat='{lat}' lon='1'/>"))), format!("line 3, column 10: {says}"));
    }
    assert!(wrong(&track("<trkpt lat='1' lat='2' lon='1'/>")).starts_with("line 3, column 9: "));
    assert_eq!(wrong("<gpx><trkpt lat='1' lon='1'/></gpx>"), "line 1, column 6: a point outside of a segment or route");
}

#[test]
fn what_is_not_gpx_is_refused() {
    assert_eq!(wrong(""), "line 1, column 1: there are no points of a track or a route");
    assert_eq!(wrong("just text"), "line 1, column 10: there are no points of a track or a route");
    assert_eq!(wrong("<html></html>"), "line 1, column 1: this is not GPX: it begins with `html`");
    assert_eq!(wrong("<gpx></gpx>"), "line 1, column 12: there are no points of a track or a route");
    assert!(wrong("<gpx><trk></gpx>").starts_with("line 1, column 11: "));
    assert!(wrong("<gpx><trk").starts_with("line 1, column 6: "));
    assert!(wrong("<gpx></gpx></gpx>").starts_with("line 1, column 12: "));
    let cut = &RIDE[..RIDE.find("</trkseg>").unwrap()];
    assert!(wrong(cut).ends_with("the file ends too early: elements are still open"), "{}", wrong(cut));
    assert_eq!(
        Line::from_gpx(b"<gpx>\n<trk><name>\x93\xbb</name>").unwrap_err().to_string(),
        "line 2, column 12: the file is not UTF-8"
    );
    let utf16: Vec<u8> = RIDE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(Line::from_gpx(&[&[0xff, 0xfe][..], &utf16].concat()).is_err());
}

#[test]
fn bombs_do_not_go_off() {
    let laughs = r#"<!DOCTYPE gpx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><gpx/>"#;
    assert_eq!(wrong(laughs), "line 1, column 1: a GPX file has no DOCTYPE");
    assert_eq!(wrong("<gpx><trk><name>&b;</name></trk></gpx>"), "line 1, column 17: unknown entity `&b;`");
    assert!(wrong(&track("<trkpt lat='&b;' lon='1'/>")).starts_with("line 3, column 9: "));
    let deep = format!("<gpx>{}", "<a>".repeat(100_000));
    assert!(wrong(&deep).ends_with("elements are nested more than 64 deep"));
    let points = track(&"<trkpt lat='1' lon='1'/>".repeat(MAX_POINTS + 1));
    assert!(wrong(&points).ends_with("there are more than 100000 points"), "{}", wrong(&points));
    let most = track(&"<trkpt lat='1' lon='1'/>".repeat(MAX_POINTS));
    assert_eq!(Line::from_gpx(most.as_bytes()).unwrap().pieces()[0].len(), MAX_POINTS);
    let large = vec![b' '; MAX_GPX_BYTES + 1];
    assert!(Line::from_gpx(&large).unwrap_err().reason.contains("more than the"));
    let name =
        format!("<gpx><trk><name>{}</name><trkseg><trkpt lat='1' lon='1'/></trkseg></trk></gpx>", "長".repeat(9_999));
    assert_eq!(Line::from_gpx(name.as_bytes()).unwrap().name().map(|name| name.chars().count()), Some(200));
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _either = Line::from_gpx(&bytes);
    }

    /// The good file with some bytes put in, or cut out.
    #[test]
    fn no_damage_makes_it_panic(at in 0..RIDE.len(), cut in 0..40_usize, put in "[<>&;/!?a-c\"'= \\[\\]-]{0,8}") {
        let bytes = RIDE.as_bytes();
        let damaged = [&bytes[..at], put.as_bytes(), &bytes[(at + cut).min(bytes.len())..]].concat();
        let _either = Line::from_gpx(&damaged);
    }
}
