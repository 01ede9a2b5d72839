//! Tiles of heights, and routes over them.

use sekisho_elevation::open_elevation::LookupRequest;
use sekisho_elevation::{Line, Precision, Tile};

use super::{line, text as lossy};

/// Lines of a text tile, as they are, and repeated until they are 256 lines of 256 heights.
pub(super) fn text(input: &[u8]) -> String {
    let rows: Vec<Vec<&[u8]>> = input
        .split(|byte| *byte == b'\n')
        .take(256)
        .map(|row| row.split(|byte| *byte == b',').take(256).collect())
        .collect();
    let rows = rows.iter().cycle().take(256);
    let row = |cells: &Vec<&[u8]>| cells.iter().copied().cycle().take(256).collect::<Vec<_>>().join(&b","[..]);
    let whole = rows.map(row).collect::<Vec<_>>().join(&b"\n"[..]);
    format!("{} {}", told(input), told(&whole))
}

/// Chunks of a PNG, whose checksums are put right: no change would get past them otherwise.
pub(super) fn png(input: &[u8]) -> String {
    const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
    let mut rest = input.strip_prefix(SIGNATURE).unwrap_or(input);
    let mut whole = SIGNATURE.to_vec();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = (u32::from_be_bytes(*length) as usize).min(after.len().saturating_sub(4));
        let Some((chunk, after)) = after.split_at_checked(4 + length) else { break };
        whole.extend_from_slice(&(length as u32).to_be_bytes());
        whole.extend_from_slice(chunk);
        whole.extend_from_slice(&crc(chunk).to_be_bytes());
        rest = after.get(4..).unwrap_or_default();
    }
    format!("{} {}", told(input), told(&whole))
}

/// A tile that was read is the same in both forms.
fn told(bytes: &[u8]) -> String {
    match Tile::decode(bytes) {
        Ok(tile) => {
            assert_eq!(Tile::decode(&tile.to_png()).as_ref(), Ok(&tile));
            format!("{} bytes", tile.size_in_memory())
        }
        Err(error) => error.to_string(),
    }
}

/// The checksum of PNG.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    })
}

/// A GPX file; or, by its first line, a polyline or the points of a query.
pub(super) fn routes(input: &[u8]) -> String {
    let (first, _) = line(input);
    let first = lossy(first);
    let of = |line: &Line| line.pieces().len().min(3);
    let gpx = Line::from_gpx(input).map(|line| of(&line)).map_err(|error| error.reason);
    let polyline =
        [Precision::Five, Precision::Six].map(|precision| Line::from_polyline(&first, precision).map(|line| of(&line)));
    let points =
        LookupRequest::from_query(&first).and_then(|request| request.points()).map(|points| points.len().min(3));
    format!("{gpx:?} {polyline:?} {points:?}")
}
