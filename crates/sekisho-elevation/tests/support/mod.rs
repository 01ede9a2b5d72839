//! Ground whose heights are known.
#![allow(dead_code, reason = "every test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sekisho_elevation::{Layer, Pixel, TILE_SIDE, Tile, TileId, Tiles, TilesError};

/// Tiles made from a function of layer and pixel. A tile without any height does not exist, as at GSI.
pub(crate) struct Ground<F> {
    height: F,
    made: Mutex<HashMap<TileId, Option<Arc<Tile>>>>,
    asked: Mutex<Vec<TileId>>,
}

impl<F: Fn(Layer, Pixel) -> Option<f64> + Sync> Ground<F> {
    pub(crate) fn new(height: F) -> Self {
        Self { height, made: Mutex::default(), asked: Mutex::default() }
    }

    /// What was asked for since the last time, in order.
    pub(crate) fn asked(&self) -> Vec<TileId> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn make(&self, id: TileId) -> Option<Arc<Tile>> {
        let pixel = |x, y| Pixel { x: id.x * TILE_SIDE + u32::from(x), y: id.y * TILE_SIDE + u32::from(y) };
        let tile = Tile::from_fn(|x, y| (self.height)(id.layer, pixel(x, y)));
        (!tile.is_empty()).then(|| Arc::new(tile))
    }
}

impl<F: Fn(Layer, Pixel) -> Option<f64> + Sync> Tiles for Ground<F> {
    type Shared = Arc<Tile>;

    async fn tile(&self, id: TileId) -> Result<Option<Arc<Tile>>, TilesError> {
        self.asked.lock().unwrap().push(id);
        let mut made = self.made.lock().unwrap();
        Ok(made.entry(id).or_insert_with(|| self.make(id)).clone())
    }
}

/// Rough ground: a height between 0 and 100 m that has nothing to do with its neighbours', in whole centimetres.
pub(crate) fn rough(pixel: Pixel) -> f64 {
    let mixed = (u64::from(pixel.x) << 32 | u64::from(pixel.y)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f64 % 10_001.0 / 100.0
}

/// The answer of a future that has nothing to wait for.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
