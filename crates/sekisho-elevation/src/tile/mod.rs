//! A decoded tile: 256 × 256 heights or holes, as small as they allow.
//!
//! This is the form for memory. The other tiers keep the bytes as they came from GSI; a tile is decoded once on its way
//! up.

mod png;
mod text;

use std::fmt;

use crate::mercator::TILE_SIDE;

const CELLS: usize = (TILE_SIDE * TILE_SIDE) as usize;

/// The highest height in centimetres that a PNG tile can say, and with a minus the lowest.
const MAX_CM: i32 = (1 << 23) - 1;

/// While a tile is being read, this stands for a hole. No tile can say it as a height.
const HOLE: i32 = i32::MIN;

/// No tile is larger than this: 256 × 256 of the longest heights as text.
pub const MAX_TILE_BYTES: usize = 1 << 20;

/// Heights in centimetres, row by row from the north-west. Holes stay holes: the sea is not 0 m.
#[derive(Clone, PartialEq, Eq)]
pub struct Tile {
    grid: Grid,
}

/// A tile at zoom 15 is a kilometre wide, so nearly all span less than 655 m and fit in 128 KiB. A tile of the sea needs
/// nothing.
#[derive(Clone, PartialEq, Eq)]
enum Grid {
    Uniform(Option<i32>),
    /// Distances from the lowest; `u16::MAX` is a hole.
    Narrow {
        lowest: i32,
        above: Box<[u16; CELLS]>,
    },
    /// The 24 bits of a PNG tile.
    Wide(Box<[[u8; 3]; CELLS]>),
}

/// Why bytes are not a tile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    #[error("a tile of {bytes} bytes is larger than any can be")]
    TooLarge { bytes: usize },
    #[error("not a PNG elevation tile: {0}")]
    Png(String),
    #[error("not a text elevation tile: line {line}, column {column}: {reason}")]
    Text { line: usize, column: usize, reason: &'static str },
}

impl Tile {
    /// Reads a PNG or a text tile of GSI's, whichever it is.
    pub fn decode(bytes: &[u8]) -> Result<Self, TileError> {
        if bytes.len() > MAX_TILE_BYTES {
            return Err(TileError::TooLarge { bytes: bytes.len() });
        }
        let cells = if bytes.starts_with(&png::SIGNATURE) { png::decode(bytes) } else { text::decode(bytes) }?;
        Ok(Self::of(&cells))
    }

    /// A tile with the heights, in metres, that `height` gives for column and row. What the format cannot hold (more than
    /// ±83,886.07 m, or no number) is a hole.
    pub fn from_fn(mut height: impl FnMut(u8, u8) -> Option<f64>) -> Self {
        let cells = (0..CELLS).map(|cell| match height((cell % 256) as u8, (cell / 256) as u8) {
            Some(metres) if (metres * 100.0).round().abs() <= f64::from(MAX_CM) => (metres * 100.0).round() as i32,
            _ => HOLE,
        });
        Self::of(&cells.collect::<Vec<_>>())
    }

    /// The height in column `x` and row `y`, in centimetres.
    #[inline]
    pub fn cm(&self, x: u8, y: u8) -> Option<i32> {
        let cell = usize::from(y) * 256 + usize::from(x);
        match &self.grid {
            Grid::Uniform(height) => *height,
            Grid::Narrow { lowest, above } => match above[cell] {
                u16::MAX => None,
                above => Some(lowest + i32::from(above)),
            },
            Grid::Wide(cells) => png::height(cells[cell]),
        }
    }

    pub fn metres(&self, x: u8, y: u8) -> Option<f64> {
        self.cm(x, y).map(|cm| f64::from(cm) / 100.0)
    }

    /// No height at all, as on the open sea.
    pub fn is_empty(&self) -> bool {
        self.grid == Grid::Uniform(None)
    }

    /// What it takes in memory, for a cache that is bounded by bytes.
    pub fn size_in_memory(&self) -> usize {
        let heap = match &self.grid {
            Grid::Uniform(_) => 0,
            Grid::Narrow { .. } => size_of::<[u16; CELLS]>(),
            Grid::Wide(_) => size_of::<[[u8; 3]; CELLS]>(),
        };
        size_of::<Self>() + heap
    }

    /// The tile as GSI's text: 256 lines of 256 heights with commas, `e` for a hole.
    pub fn to_text(&self) -> String {
        text::encode(self)
    }

    /// The tile as GSI's PNG.
    pub fn to_png(&self) -> Vec<u8> {
        png::encode(self)
    }

    /// `cells` has one entry for each pixel, each a height that fits or `HOLE`.
    fn of(cells: &[i32]) -> Self {
        let heights = || cells.iter().copied().filter(|cell| *cell != HOLE);
        let holes = cells.contains(&HOLE);
        let (Some(lowest), Some(highest)) = (heights().min(), heights().max()) else {
            return Self { grid: Grid::Uniform(None) };
        };
        let grid = if lowest == highest && !holes {
            Grid::Uniform(Some(lowest))
        } else if highest - lowest < i32::from(u16::MAX) {
            let above = |cell: i32| if cell == HOLE { u16::MAX } else { (cell - lowest) as u16 };
            Grid::Narrow { lowest, above: boxed(cells, above) }
        } else {
            Grid::Wide(boxed(cells, |cell| png::pixel((cell != HOLE).then_some(cell))))
        };
        Self { grid }
    }
}

/// Directly on the heap: an array of this size does not belong on a stack.
fn boxed<T: Copy>(cells: &[i32], convert: impl Fn(i32) -> T) -> Box<[T; CELLS]> {
    let converted: Vec<T> = cells.iter().map(|cell| convert(*cell)).collect();
    converted.try_into().unwrap_or_else(|wrong: Vec<T>| unreachable!("a tile of {} cells", wrong.len()))
}

impl fmt::Debug for Tile {
    /// Nobody wants to see 65,536 heights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match &self.grid {
            Grid::Uniform(None) => "empty",
            Grid::Uniform(Some(_)) => "uniform",
            Grid::Narrow { .. } => "narrow",
            Grid::Wide(_) => "wide",
        };
        f.debug_struct("Tile").field("form", &form).field("bytes", &self.size_in_memory()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tile_takes_what_its_heights_need() {
        let sea = Tile::from_fn(|_, _| None);
        let lake = Tile::from_fn(|_, _| Some(84.3));
        let hills = Tile::from_fn(|x, y| (x > 3).then(|| f64::from(x) + f64::from(y) / 100.0));
        let cliff = Tile::from_fn(|x, _| Some(f64::from(x) * 10.0));
        let kib = |tile: &Tile| tile.size_in_memory() / 1024;
        assert_eq!([kib(&sea), kib(&lake), kib(&hills), kib(&cliff)], [0, 0, 128, 192]);
        assert!(sea.is_empty() && !lake.is_empty());
        assert_eq!(format!("{sea:?}"), format!("Tile {{ form: \"empty\", bytes: {} }}", sea.size_in_memory()));
        assert_eq!((hills.cm(3, 9), hills.cm(4, 9), cliff.cm(255, 0)), (None, Some(409), Some(255_000)));
    }

    #[test]
    fn what_the_format_cannot_hold_is_a_hole() {
        for metres in [f64::NAN, f64::INFINITY, 83_886.08, -83_886.08] {
            assert!(Tile::from_fn(|_, _| Some(metres)).is_empty(), "{metres}");
        }
        assert_eq!(Tile::from_fn(|_, _| Some(-83_886.07)).cm(0, 0), Some(-MAX_CM));
    }

    proptest! {
        // Each case reads and writes 65,536 cells five times.
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Whatever the form in memory, and through both formats, every cell is what was put in.
        #[test]
        fn every_form_says_what_was_put_in(
            lowest in -MAX_CM..=0_i32,
            span in prop_oneof![0..10_i32, 65_500..65_600_i32, 0..=MAX_CM],
            seed in any::<u64>(),
            holes in 0_u64..4,
        ) {
            let expected = |x: u8, y: u8| {
                let mixed = (u64::from(x) * 256 + u64::from(y) + 1).wrapping_mul(seed | 1).rotate_left(23);
                let cm = lowest + (mixed % (span as u64 + 1)) as i32;
                (mixed % 4 >= holes).then_some(cm)
            };
            let tile = Tile::from_fn(|x, y| expected(x, y).map(|cm| f64::from(cm) / 100.0));
            for (x, y) in [(0, 0), (255, 0), (0, 255), (255, 255), (17, 200), (128, 128)] {
                prop_assert_eq!(tile.cm(x, y), expected(x, y));
            }
            prop_assert!(Tile::decode(&tile.to_png()).unwrap() == tile);
            prop_assert!(Tile::decode(tile.to_text().as_bytes()).unwrap() == tile);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _either = Tile::decode(&bytes);
            let _either = Tile::decode(&[&png::SIGNATURE[..], &bytes].concat());
        }
    }
}
