//! Text tiles: 256 lines from north to south of 256 heights in metres with commas, `e` for a hole.

use super::{CELLS, HOLE, MAX_CM, Tile, TileError};

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<i32>, TileError> {
    let refuse = |line, column, reason| TileError::Text { line, column, reason };
    let text = std::str::from_utf8(bytes).map_err(|_| refuse(1, 1, "it is neither PNG nor text"))?;
    // Lines end in LF, CR LF or, where there is no LF, CR. A last end may be missing.
    let newline = if text.contains('\n') { '\n' } else { '\r' };
    let mut cells = Vec::with_capacity(CELLS);
    let mut lines = 0;
    for (index, line) in text.trim_end_matches(['\r', '\n']).split(newline).enumerate() {
        lines = index + 1;
        if lines > 256 {
            return Err(refuse(lines, 1, "more than 256 lines"));
        }
        let mut column = 0;
        for word in line.strip_suffix('\r').unwrap_or(line).split(',') {
            column += 1;
            if column > 256 {
                return Err(refuse(lines, column, "more than 256 heights"));
            }
            cells.push(height(word).ok_or_else(|| refuse(lines, column, "neither a height nor `e`"))?);
        }
        if column < 256 {
            return Err(refuse(lines, column, "fewer than 256 heights"));
        }
    }
    if lines < 256 {
        return Err(refuse(lines, 1, "fewer than 256 lines"));
    }
    Ok(cells)
}

fn height(word: &str) -> Option<i32> {
    if word == "e" {
        return Some(HOLE);
    }
    // Of what Rust reads as a number only plain decimals: no `inf`, no `1e5`.
    let plain = word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-'));
    let cm = (word.parse::<f64>().ok().filter(|_| plain)? * 100.0).round();
    (cm.abs() <= f64::from(MAX_CM)).then_some(cm as i32)
}

pub(super) fn encode(tile: &Tile) -> String {
    let mut text = String::with_capacity(CELLS * 8);
    for y in 0..=255 {
        for x in 0..=255 {
            match tile.cm(x, y) {
                Some(cm) => push(&mut text, cm),
                None => text.push('e'),
            }
            text.push(if x == 255 { '\n' } else { ',' });
        }
    }
    text
}

/// By whole numbers, so that 0.29 does not become 0.28999.
fn push(text: &mut String, cm: i32) {
    use std::fmt::Write as _;
    let sign = if cm < 0 { "-" } else { "" };
    let _infallible = write!(text, "{sign}{}.{:02}", cm.abs() / 100, cm.abs() % 100);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (word, cm) in [("5.28", 528), ("0.96", 96), ("-3", -300), ("1187.16", 118_716), ("0.005", 1), ("e", HOLE)] {
            assert_eq!(height(word), Some(cm), "{word}");
        }
        for word in ["", " 1", "E", "nan", "inf", "-inf", "1e5", "1,5", "83886.08", "--1", "0x1", "١"] {
            assert_eq!(height(word), None, "{word}");
        }
    }

    #[test]
    fn centimetres_are_written_whole() {
        let written = |cm| {
            let mut text = String::new();
            push(&mut text, cm);
            text
        };
        assert_eq!([0, 29, -5, 118_716, -100].map(written), ["0.00", "0.29", "-0.05", "1187.16", "-1.00"]);
    }
}
