//! Bytes that are tiles, and bytes that are not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;

use png::{BitDepth, ColorType};
use sekisho_elevation::{MAX_TILE_BYTES, Tile, TileError};

/// A picture of any kind, written by the encoder.
fn picture(
    side: (u32, u32),
    colour: ColorType,
    depth: BitDepth,
    data: &[u8],
    more: impl FnOnce(&mut png::Encoder<'_, &mut Vec<u8>>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, side.0, side.1);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    more(&mut encoder);
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    bytes
}

fn hills() -> Tile {
    Tile::from_fn(|x, y| (x != 7).then(|| f64::from(x) * 0.37 + f64::from(y) * 1.01 - 40.0))
}

/// A chunk with its length and checksum.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut sum = u32::MAX;
    for byte in kind.iter().chain(data) {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xEDB8_8320 * (sum & 1));
        }
    }
    [&(data.len() as u32).to_be_bytes()[..], kind, data, &(!sum).to_be_bytes()].concat()
}

/// The end of the signature and the header.
const AFTER_HEADER: usize = 8 + 25;

fn with_chunk(png: &[u8], chunk: &[u8]) -> Vec<u8> {
    [&png[..AFTER_HEADER], chunk, &png[AFTER_HEADER..]].concat()
}

fn refused(bytes: &[u8]) -> String {
    match Tile::decode(bytes) {
        Ok(tile) => panic!("taken for {tile:?}"),
        Err(error) => error.to_string(),
    }
}

/// The corners of GSI's own example, dem/14/14547/6463.txt.
#[test]
fn gsis_example_as_text() {
    let corner = |x: u8, y: u8| match (x, y) {
        (0, 0) => "5.28",
        (255, 0) => "0.96",
        (0, 255) => "2.35",
        (255, 255) => "e",
        _ => "1.00",
    };
    let line = |y: u8| (0..=255).map(|x| corner(x, y)).collect::<Vec<_>>().join(",");
    for newline in ["\n", "\r\n", "\r"] {
        for end in ["", newline] {
            let text = (0..=255).map(line).collect::<Vec<_>>().join(newline) + end;
            let tile = Tile::decode(text.as_bytes()).unwrap();
            let corners = [(0, 0), (255, 0), (0, 255), (255, 255)].map(|(x, y)| tile.metres(x, y));
            assert_eq!(corners, [Some(5.28), Some(0.96), Some(2.35), None], "{newline:?}");
        }
    }
}

#[test]
fn palettes_and_alpha_are_read() {
    let colours = [[0, 0, 100], [128, 0, 0], [255, 255, 156]];
    let palette: Vec<u8> = (0..65_536).map(|cell| (cell % 3) as u8).collect();
    let bytes = picture((256, 256), ColorType::Indexed, BitDepth::Eight, &palette, |encoder| {
        encoder.set_palette(colours.concat());
    });
    let tile = Tile::decode(&bytes).unwrap();
    assert_eq!([tile.cm(0, 0), tile.cm(1, 0), tile.cm(2, 0)], [Some(100), None, Some(-100)]);

    let pixels: Vec<u8> = (0..65_536_u32).flat_map(|cell| [0, 0, 100, if cell == 1 { 0 } else { 255 }]).collect();
    let bytes = picture((256, 256), ColorType::Rgba, BitDepth::Eight, &pixels, |_| {});
    let tile = Tile::decode(&bytes).unwrap();
    assert_eq!([tile.cm(0, 0), tile.cm(1, 0)], [Some(100), None], "what cannot be seen is no height");
}

#[test]
fn gamma_and_other_remarks_change_nothing() {
    let plain = hills().to_png();
    let gamma = with_chunk(&plain, &chunk(b"gAMA", &45_455_u32.to_be_bytes()));
    let remark = with_chunk(&plain, &chunk(b"tEXt", b"Software\0someone's"));
    assert_eq!(Tile::decode(&gamma).unwrap(), hills());
    assert_eq!(Tile::decode(&remark).unwrap(), hills());
}

#[test]
fn a_tile_that_is_cut_off_or_damaged_is_none() {
    let whole = hills().to_png();
    for length in (0..whole.len()).step_by(97).chain([8, 32, 33, whole.len() - 1, whole.len() - 12]) {
        assert!(Tile::decode(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
    let mut long = whole.clone();
    long.push(b'\n');
    assert_eq!(refused(&long), "not a PNG elevation tile: it is cut off, or something follows it");
    // Whatever byte of the picture's data is wrong is noticed.
    for place in (AFTER_HEADER + 8..whole.len() - 16).step_by(211) {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x10;
        assert!(Tile::decode(&damaged).is_err(), "byte {place}");
    }
}

#[test]
fn other_pictures_are_no_tiles() {
    let size = |side: (u32, u32)| {
        let data = vec![0; (side.0 * side.1 * 3) as usize];
        refused(&picture(side, ColorType::Rgb, BitDepth::Eight, &data, |_| {}))
    };
    assert_eq!(size((255, 256)), "not a PNG elevation tile: it has 255 × 256 pixels, not 256 × 256");
    assert_eq!(size((512, 512)), "not a PNG elevation tile: it has 512 × 512 pixels, not 256 × 256");
    let kind =
        |colour, depth, bytes: usize| refused(&picture((256, 256), colour, depth, &vec![0; 65_536 * bytes], |_| {}));
    assert!(kind(ColorType::Grayscale, BitDepth::Eight, 1).contains("Grayscale of 8 bits"));
    assert!(kind(ColorType::GrayscaleAlpha, BitDepth::Eight, 2).contains("GrayscaleAlpha of 8 bits"));
    assert!(kind(ColorType::Rgb, BitDepth::Sixteen, 6).contains("Rgb of 16 bits"));
    let frames = picture((256, 256), ColorType::Rgb, BitDepth::Eight, &vec![0; 65_536 * 3], |encoder| {
        encoder.set_animated(1, 0).unwrap();
    });
    assert!(refused(&frames).contains("animated"));
}

/// Deflated zeros: a thousandth of what they become.
fn zeros(bytes: usize) -> Vec<u8> {
    let side = 4_096;
    let data = vec![0; side * bytes.div_ceil(side)];
    let rows = (bytes.div_ceil(side)) as u32;
    let picture = picture((side as u32, rows), ColorType::Grayscale, BitDepth::Eight, &data, |encoder| {
        encoder.set_compression(png::Compression::High);
        encoder.set_filter(png::Filter::NoFilter);
    });
    // All data chunks of the picture, joined.
    let mut rest = &picture[AFTER_HEADER..];
    let mut deflated = Vec::new();
    while let [a, b, c, d, k0, k1, k2, k3, after @ ..] = rest {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if [*k0, *k1, *k2, *k3] == *b"IDAT" {
            deflated.write_all(&after[..length]).unwrap();
        }
        rest = &after[length + 4..];
    }
    deflated
}

#[test]
fn bombs_do_not_go_off() {
    // A header that asks for 16 GB.
    let small = hills().to_png();
    let huge = [&70_000_u32.to_be_bytes()[..], &70_000_u32.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
    let header = [&small[..8], &chunk(b"IHDR", &huge), &small[AFTER_HEADER..]].concat();
    assert!(within_bounds(&header).unwrap_err().to_string().contains("70000 × 70000"));

    // A remark and a profile that inflate to 64 MiB are passed over.
    let inflates = zeros(64 << 20);
    assert!(inflates.len() < MAX_TILE_BYTES);
    let remark = [&b"Comment\0\0"[..], &inflates].concat();
    for bomb in [chunk(b"zTXt", &remark), chunk(b"iCCP", &remark)] {
        assert_eq!(within_bounds(&with_chunk(&small, &bomb)).unwrap(), hills());
    }

    // Data for 64 MiB in a picture of 192 KiB: no more is taken than the picture needs.
    let end = chunk(b"IEND", b"");
    let long = [&small[..AFTER_HEADER], &chunk(b"IDAT", &inflates), &end].concat();
    assert_eq!(within_bounds(&long), Ok(Tile::from_fn(|_, _| Some(0.0))));
    assert_eq!(Tile::decode(&vec![b'1'; MAX_TILE_BYTES + 1]), Err(TileError::TooLarge { bytes: MAX_TILE_BYTES + 1 }));
}

/// Decodes, and sees to what it takes: pixels, heights, and the decoder's own.
fn within_bounds(bytes: &[u8]) -> Result<Tile, TileError> {
    let mut decoded = None;
    let used = allocation_counter::measure(|| decoded = Some(Tile::decode(bytes)));
    assert!(used.bytes_max < 2 << 20, "{} bytes at a time for a tile of {}", used.bytes_max, bytes.len());
    decoded.unwrap()
}

#[test]
fn a_tile_takes_what_it_says() {
    let cliff = Tile::from_fn(|x, _| Some(f64::from(x) * 10.0));
    for tile in [hills(), cliff, Tile::from_fn(|_, _| None)] {
        let png = tile.to_png();
        let mut decoded = None;
        let used = allocation_counter::measure(|| decoded = Some(Tile::decode(&png).unwrap()));
        assert_eq!(used.bytes_current + size_of::<Tile>() as i64, tile.size_in_memory() as i64, "{tile:?}");
        drop(decoded);
    }
}

#[test]
fn text_that_is_no_tile_says_where() {
    let good = hills().to_text();
    let lines: Vec<&str> = good.lines().collect();
    let text = |lines: &[&str]| refused(lines.join("\n").as_bytes());
    let says = |reason: &str| format!("not a text elevation tile: {reason}");
    assert_eq!(text(&lines[..255]), says("line 255, column 1: fewer than 256 lines"));
    assert_eq!(text(&[&lines[..], &lines[..1]].concat()), says("line 257, column 1: more than 256 lines"));
    let third = |line: String| text(&[&lines[..2], &[&line], &lines[3..]].concat());
    assert_eq!(third(format!("{},1", lines[2])), says("line 3, column 257: more than 256 heights"));
    assert_eq!(third("1,2,3".to_owned()), says("line 3, column 3: fewer than 256 heights"));
    assert_eq!(third(lines[2].replacen(",", ",NaN,", 1)), says("line 3, column 2: neither a height nor `e`"));
    assert_eq!(third(String::new()), says("line 3, column 1: neither a height nor `e`"));
    assert_eq!(refused(b""), says("line 1, column 1: neither a height nor `e`"));
    assert_eq!(refused(b"\xff\xfe1,2"), says("line 1, column 1: it is neither PNG nor text"));
    assert_eq!(refused(b"<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>"), refused(b"<html>"));
}
