//! The picture of a profile: well-formed, told in words, the same each time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use sekisho_elevation::{ATTRIBUTION, Height, Layer, Point, Profile, Sample, Samples, Settings};

fn profile(heights: &[Option<f64>], spacing_m: f64) -> Profile {
    let here = Point::new(35.0, 139.0).unwrap();
    let sample = |index| Sample { point: here, distance_m: index as f64 * spacing_m, starts: index == 0 };
    let samples = Samples { spacing_m: Some(spacing_m), samples: (0..heights.len()).map(sample).collect() };
    let height = |metres: &Option<f64>| metres.map(|metres| Height { metres, layer: Layer::Dem5a });
    Profile::new(samples, &heights.iter().map(height).collect::<Vec<_>>(), Settings::default())
}

/// Elements with their text, read by an XML reader, which fails for anything that is not well-formed.
fn elements(svg: &str) -> Vec<(String, String)> {
    let mut reader = Reader::from_str(svg);
    let mut elements: Vec<(String, String)> = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) | Event::Empty(start) => {
                for attribute in start.attributes() {
                    attribute.unwrap().normalized_value(XmlVersion::Implicit1_0).unwrap();
                }
                elements.push((start.name().into_inner().to_owned(), String::new()));
            }
            Event::Text(text) => {
                if let Some((_, content)) = elements.last_mut() {
                    content.push_str(text.xml10_content().trim_end_matches('\n'));
                }
            }
            Event::GeneralRef(reference) => {
                let known = quick_xml::escape::resolve_xml_entity(&reference.xml10_content()).unwrap().to_owned();
                elements.last_mut().unwrap().1.push_str(&known);
            }
            Event::Eof => return elements,
            _ => {}
        }
    }
}

fn texts<'a>(elements: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    elements.iter().filter(|(element, _)| element == name).map(|(_, text)| text.as_str()).collect()
}

#[test]
fn a_picture_says_what_it_shows() {
    let heights: Vec<Option<f64>> = (0..=500).map(|i| Some(f64::from(250 - (i - 250_i32).abs()) * 1.2)).collect();
    let profile = profile(&heights, 25.0);
    let svg = profile.to_svg("Over <the> pass & \"back\"\u{0}");
    assert_eq!(svg, profile.to_svg("Over <the> pass & \"back\"\u{0}"));
    assert!(svg.starts_with("<svg ") && svg.contains("role=\"img\" aria-labelledby=\"profile-title profile-desc\""));
    let elements = elements(&svg);
    assert_eq!(texts(&elements, "title"), ["Over <the> pass & \"back\""]);
    assert_eq!(texts(&elements, "desc"), ["12.5 km, 300 m up and 300 m down, between 0 m and 300 m"]);
    let labels = texts(&elements, "text");
    for label in ["0", "100", "200", "300", "2", "12", "km", "m", ATTRIBUTION] {
        assert!(labels.contains(&label), "{label} is not in {labels:?}");
    }
    assert_eq!(texts(&elements, "path").len(), 2, "a line, and the ground below it");
}

#[test]
fn a_line_breaks_where_no_height_is_known() {
    let heights = [Some(1.0), Some(2.0), None, Some(3.0), Some(2.0)];
    let elements = elements(&profile(&heights, 100.0).to_svg("gap"));
    assert_eq!(texts(&elements, "path").len(), 4);
    assert!(texts(&elements, "desc")[0].ends_with("; no height at 1 of 5 points"));
}

#[test]
fn profiles_without_extent_can_be_drawn() {
    for heights in [&[][..], &[None, None], &[Some(3.0)], &[Some(-5.0), Some(-5.0)], &[Some(3_776.0); 3]] {
        let svg = profile(heights, 0.5).to_svg("");
        elements(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    let nothing = elements(&profile(&[None, None], 100.0).to_svg("sea"));
    assert_eq!(texts(&nothing, "desc"), ["100 m; no heights are known here"]);
}

/// A hundred kilometres are as large as a picture is wide, and no top is lost.
#[test]
fn a_long_profile_is_a_small_picture() {
    let mut heights: Vec<Option<f64>> = (0..20_000).map(|i| Some(f64::from(i % 7))).collect();
    heights[12_345] = Some(1_000.0);
    let svg = profile(&heights, 5.0).to_svg("long");
    assert!(svg.len() < 150_000, "{} bytes", svg.len());
    assert!(svg.contains(" 48.0L"), "the top is drawn at the top");
}
