//! GPX files: the points of their tracks and routes.
//!
//! Everything else is passed over: single waypoints, recorded heights (GPS is tens of metres off, which is why people ask
//! us), extensions. There are no entities but XML's own five, so none can grow; a file with a DOCTYPE is refused.

use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::line::{Line, LineError, MAX_POINTS};
use crate::point::Point;

/// The most points, each with time, height and some extensions.
pub const MAX_GPX_BYTES: usize = 32 << 20;

const MAX_DEPTH: usize = 64;
const MAX_NAME: usize = 200;

/// Why a file is no GPX, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct GpxError {
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub reason: String,
}

impl Line {
    /// Each segment of a track and each route is a piece. The name is the first that the file, a track or a route has.
    pub fn from_gpx(bytes: &[u8]) -> Result<Self, GpxError> {
        if bytes.len() > MAX_GPX_BYTES {
            return Err(at(
                &[],
                0,
                format!("{} bytes are more than the {MAX_GPX_BYTES} that a file may have", bytes.len()),
            ));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| at(bytes, error.valid_up_to(), "the file is not UTF-8".to_owned()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut file = File::default();
        let mut reader = Reader::from_str(text);
        loop {
            let begin = reader.buffer_position() as usize;
            let event = reader.read_event().map_err(|error| {
                let place = reader.error_position() as usize;
                at(text.as_bytes(), place, error.to_string())
            })?;
            if let Event::Eof = event {
                return file.finish().map_err(|reason| at(text.as_bytes(), begin, reason));
            }
            file.take(event).map_err(|reason| at(text.as_bytes(), begin, reason))?;
        }
    }
}

/// What is known of the file so far.
#[derive(Default)]
struct File {
    open: Vec<Element>,
    name: Option<String>,
    pieces: Vec<Vec<Point>>,
    points: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Element {
    Gpx,
    /// A track, a route or the file's metadata.
    Named,
    Name,
    Other,
}

impl File {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Start(start) => {
                let element = self.enter(&start)?;
                if self.open.len() >= MAX_DEPTH {
                    return Err(format!("elements are nested more than {MAX_DEPTH} deep"));
                }
                self.open.push(element);
            }
            Event::Empty(start) => {
                self.enter(&start)?;
            }
            Event::End(_) => {
                self.open.pop();
            }
            Event::Text(text) => self.append(&text.xml10_content()),
            Event::CData(text) => self.append(&text.xml10_content()),
            Event::GeneralRef(reference) => {
                let unknown = || format!("unknown entity `&{};`", clip(&reference.xml10_content()));
                match reference.resolve_char_ref().map_err(|error| error.to_string())? {
                    Some(letter) => self.append(letter.encode_utf8(&mut [0; 4])),
                    None => self.append(resolve_xml_entity(&reference.xml10_content()).ok_or_else(unknown)?),
                }
            }
            Event::DocType(_) => return Err("a GPX file has no DOCTYPE".to_owned()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::Eof => {}
        }
        Ok(())
    }

    fn enter(&mut self, start: &BytesStart<'_>) -> Result<Element, String> {
        let name = start.local_name();
        let name = name.into_inner();
        if self.open.is_empty() {
            return match name {
                "gpx" => Ok(Element::Gpx),
                other => Err(format!("this is not GPX: it begins with `{}`", clip(other))),
            };
        }
        match name {
            "trk" | "metadata" => return Ok(Element::Named),
            "rte" => {
                self.pieces.push(Vec::new());
                return Ok(Element::Named);
            }
            "trkseg" => self.pieces.push(Vec::new()),
            "trkpt" | "rtept" => self.add(point(start)?)?,
            "name" if self.name.is_none() && self.open.last() == Some(&Element::Named) => {
                self.name = Some(String::new());
                return Ok(Element::Name);
            }
            _ => {}
        }
        Ok(Element::Other)
    }

    fn add(&mut self, point: Point) -> Result<(), String> {
        self.points += 1;
        if self.points > MAX_POINTS {
            return Err(LineError::TooManyPoints.to_string());
        }
        let piece = self.pieces.last_mut().ok_or("a point outside of a segment or route")?;
        piece.push(point);
        Ok(())
    }

    fn append(&mut self, text: &str) {
        let Some(name) = self.name.as_mut().filter(|_| self.open.last() == Some(&Element::Name)) else { return };
        let room = MAX_NAME.saturating_sub(name.chars().count());
        name.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
    }

    fn finish(self) -> Result<Line, String> {
        if !self.open.is_empty() {
            return Err("the file ends too early: elements are still open".to_owned());
        }
        let line = Line::of_pieces(self.pieces).map_err(|error| format!("{error} of a track or a route"))?;
        Ok(line.named(self.name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())))
    }
}

/// All attributes are looked at, so that none is there twice.
fn point(start: &BytesStart<'_>) -> Result<Point, String> {
    let (mut lat, mut lon) = (None, None);
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let (name, coordinate) = match attribute.key.into_inner() {
            "lat" => ("lat", &mut lat),
            "lon" => ("lon", &mut lon),
            _ => continue,
        };
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?;
        let number =
            value.trim().parse().map_err(|_| format!("`{name}` is `{}`, which is not a number", clip(&value)))?;
        *coordinate = Some(number);
    }
    let lat = lat.ok_or("a point without `lat`")?;
    let lon = lon.ok_or("a point without `lon`")?;
    Point::new(lat, lon).map_err(|error| error.to_string())
}

/// As much of what a stranger wrote as belongs in an error.
fn clip(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(40).collect()
}

fn at(text: &[u8], place: usize, reason: String) -> GpxError {
    let before = String::from_utf8_lossy(&text[..place.min(text.len())]);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    GpxError { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1, reason }
}
