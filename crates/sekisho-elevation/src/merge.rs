//! One tile made of all layers, for clients that read a single tile from a key.

use crate::elevation::Elevation;
use crate::layer::{Layer, covers_some};
use crate::mercator::{Pixel, TILE_SIDE, TileId, World, Zoom};
use crate::tile::Tile;
use crate::tiles::{Tiles, TilesError};

impl<T: Tiles> Elevation<T> {
    /// The tile of which each pixel is from the first layer that has a height there; `None` where no layer has any.
    ///
    /// Layers that are finer than `zoom` are taken at that zoom, where GSI has them too. A coarser one is looked up at the
    /// middle of each pixel that is still a hole.
    pub async fn merged(&self, zoom: Zoom, x: u32, y: u32) -> Result<Option<Tile>, TilesError> {
        let frame = Frame { zoom, x, y };
        if x >= zoom.tiles()
            || y >= zoom.tiles()
            || !covers_some(frame.middle(0, 0).point(), frame.middle(255, 255).point())
        {
            return Ok(None);
        }
        let mut rows: Vec<Row> = vec![[None; TILE_SIDE as usize]; TILE_SIDE as usize];
        for &layer in self.layers() {
            if rows.iter().flatten().all(Option::is_some) {
                break;
            }
            if layer.zoom() >= zoom {
                self.overlay(layer, frame, &mut rows).await?;
            } else {
                self.enlarge(layer, frame, &mut rows).await?;
            }
        }
        let tile = Tile::from_fn(|x, y| rows[usize::from(y)][usize::from(x)]);
        Ok((!tile.is_empty()).then_some(tile))
    }

    async fn overlay(&self, layer: Layer, frame: Frame, rows: &mut [Row]) -> Result<(), TilesError> {
        let Frame { zoom, x, y } = frame;
        let Some(tile) = self.tiles().tile(TileId { layer, zoom, x, y }).await? else { return Ok(()) };
        for (y, row) in (0..=255).zip(rows) {
            for (x, cell) in (0..=255).zip(row) {
                *cell = cell.or_else(|| tile.metres(x, y));
            }
        }
        Ok(())
    }

    /// Row by row, so that places of 65,536 pixels are never held at once.
    async fn enlarge(&self, layer: Layer, frame: Frame, rows: &mut [Row]) -> Result<(), TilesError> {
        for (y, row) in (0..=255).zip(rows) {
            let holes = (0..=255).filter(|x| row[usize::from(*x)].is_none());
            let mut open: Vec<(u8, World)> = holes.map(|x| (x, frame.middle(x, y))).collect();
            for (x, metres) in self.fill(layer, &mut open).await? {
                row[usize::from(x)] = Some(metres);
            }
        }
        Ok(())
    }
}

type Row = [Option<f64>; TILE_SIDE as usize];

#[derive(Clone, Copy)]
struct Frame {
    zoom: Zoom,
    x: u32,
    y: u32,
}

impl Frame {
    fn middle(self, x: u8, y: u8) -> World {
        let pixel = Pixel { x: self.x * TILE_SIDE + u32::from(x), y: self.y * TILE_SIDE + u32::from(y) };
        pixel.middle(self.zoom)
    }
}
