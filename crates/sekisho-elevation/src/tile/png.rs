//! PNG tiles: 24 bits for each pixel are a height in centimetres, with red the highest byte and two's complement below
//! the sea; (128, 0, 0) is a hole. Colour profiles and gamma mean nothing here.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Transformations};

use super::{CELLS, HOLE, Tile, TileError};
use crate::mercator::TILE_SIDE;

pub(super) const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// The last chunk with its checksum. What does not end in it is cut off, or has something behind it.
const END: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";

const NO_DATA: u32 = 1 << 23;

/// Enough for rows and a palette. Without a bound a few bytes could ask for a gigabyte.
const WORKING_MEMORY: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<i32>, TileError> {
    let bad = |reason: String| TileError::Png(reason);
    if !bytes.ends_with(&END) {
        return Err(bad("it is cut off, or something follows it".to_owned()));
    }
    let mut options = DecodeOptions::default();
    // By default a damaged stream passes if it has the right length.
    options.set_ignore_adler32(false);
    // Nobody needs them, and both can be compressed bombs.
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(bytes), options);
    decoder.set_limits(Limits { bytes: WORKING_MEMORY });
    decoder.set_transformations(Transformations::EXPAND);
    check_header(&mut decoder)?;

    let mut reader = decoder.read_info().map_err(|error| bad(error.to_string()))?;
    if reader.info().is_animated() {
        return Err(bad("it is animated".to_owned()));
    }
    let channels = match reader.output_color_type().0 {
        ColorType::Rgba => 4,
        _ => 3,
    };
    let mut pixels = vec![0; CELLS * channels];
    reader.next_frame(&mut pixels).map_err(|error| bad(error.to_string()))?;
    Ok(pixels.chunks_exact(channels).map(cell).collect())
}

/// Before anything is inflated.
fn check_header(decoder: &mut Decoder<Cursor<&[u8]>>) -> Result<(), TileError> {
    let header = decoder.read_header_info().map_err(|error| TileError::Png(error.to_string()))?;
    if (header.width, header.height) != (TILE_SIDE, TILE_SIDE) {
        return Err(TileError::Png(format!("it has {} × {} pixels, not 256 × 256", header.width, header.height)));
    }
    match (header.color_type, header.bit_depth) {
        (ColorType::Rgb | ColorType::Rgba, BitDepth::Eight) | (ColorType::Indexed, _) => Ok(()),
        (colour, depth) => Err(TileError::Png(format!("its pixels are {colour:?} of {} bits", depth as u8))),
    }
}

/// What cannot be seen was not meant to be read.
fn cell(pixel: &[u8]) -> i32 {
    match *pixel {
        [_, _, _, 0] => HOLE,
        [red, green, blue, ..] => height([red, green, blue]).unwrap_or(HOLE),
        _ => HOLE,
    }
}

pub(super) fn height([red, green, blue]: [u8; 3]) -> Option<i32> {
    let value = u32::from_be_bytes([0, red, green, blue]);
    // Up by a byte and down again extends the sign.
    (value != NO_DATA).then_some(((value << 8) as i32) >> 8)
}

pub(super) fn pixel(height: Option<i32>) -> [u8; 3] {
    let [_, red, green, blue] = height.map_or(NO_DATA, |cm| cm as u32).to_be_bytes();
    [red, green, blue]
}

pub(super) fn encode(tile: &Tile) -> Vec<u8> {
    let pixels: Vec<u8> = (0..CELLS).flat_map(|cell| pixel(tile.cm((cell % 256) as u8, (cell / 256) as u8))).collect();
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, TILE_SIDE, TILE_SIDE);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.expect("a vector takes everything, and the size is right");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The borders of the encoding.
    #[test]
    fn known_pixels() {
        for (pixel_, cm) in [
            ([0, 0, 0], Some(0)),
            ([0, 0, 1], Some(1)),
            ([1, 207, 188], Some(118_716)),
            ([127, 255, 255], Some(8_388_607)),
            ([128, 0, 0], None),
            ([128, 0, 1], Some(-8_388_607)),
            ([255, 255, 255], Some(-1)),
        ] {
            assert_eq!(height(pixel_), cm);
            assert_eq!(pixel(cm), pixel_);
        }
    }
}
