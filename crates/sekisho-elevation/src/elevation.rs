//! From a point to its height: the layers in order, and in a layer the four pixels around the point.

use std::collections::BTreeMap;
use std::ops::Deref;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::layer::{Layer, covers};
use crate::mercator::{Pixel, Square, TileId, World, Zoom};
use crate::point::Point;
use crate::tile::Tile;
use crate::tiles::{Tiles, TilesError};

/// Tiles that are asked for at a time.
const AT_ONCE: usize = 8;

/// Points of a line whose tiles are held at a time. A route's neighbours share their tiles; points that do not still
/// hold no more than these many times four.
const BATCH: usize = 64;

/// Heights of points, from whatever has tiles.
///
/// The layer is chosen as GSI's own service does: the first in which *the pixel that contains the point* has a height.
/// GSI stops there; we blend it with the three next pixels of the same layer, across borders of tiles, and leave holes
/// among them out. So no height is made from holes alone, and none from two surveys.
#[derive(Debug, Clone)]
pub struct Elevation<T> {
    tiles: T,
    layers: Vec<Layer>,
}

/// A height and where it is from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Height {
    /// Above the mean sea level of Tokyo Bay: the ground, without buildings and bridges.
    pub metres: f64,
    pub layer: Layer,
}

impl<T: Tiles> Elevation<T> {
    pub fn new(tiles: T) -> Self {
        Self { tiles, layers: Layer::BEST_FIRST.to_vec() }
    }

    /// Looks in these layers only, in this order.
    #[must_use]
    pub fn with_layers(mut self, layers: impl IntoIterator<Item = Layer>) -> Self {
        self.layers = layers.into_iter().collect();
        self
    }

    /// The height of a point, or `None` where no layer has one. Allocates nothing by itself.
    pub async fn at(&self, point: Point) -> Result<Option<Height>, TilesError> {
        if !covers(point) {
            return Ok(None);
        }
        let world = World::of(point);
        for &layer in &self.layers {
            if let Some(metres) = self.in_layer(layer, &world.square(layer.zoom())).await? {
                return Ok(Some(Height { metres, layer }));
            }
        }
        Ok(None)
    }

    async fn in_layer(&self, layer: Layer, square: &Square) -> Result<Option<f64>, TilesError> {
        let (x, y) = square.home.tile();
        let id = TileId { layer, zoom: layer.zoom(), x, y };
        let Some(tile) = self.tiles.tile(id).await? else { return Ok(None) };
        if height_in(&tile, square.home).is_none() {
            return Ok(None);
        }
        let mut heights = [None; 4];
        for (height, (corner, _)) in heights.iter_mut().zip(square.corners) {
            let (x, y) = corner.tile();
            *height = if (x, y) == (id.x, id.y) {
                height_in(&tile, corner)
            } else {
                // One point in a hundred lies this near to a border.
                self.tiles.tile(TileId { x, y, ..id }).await?.and_then(|tile| height_in(&tile, corner))
            };
        }
        Ok(square.blend(heights).map(to_metres))
    }

    /// The heights of many points, the same as [`at`](Self::at) would give. Tiles that several need are asked for once,
    /// and several tiles at a time.
    pub async fn along(&self, points: &[Point]) -> Result<Vec<Option<Height>>, TilesError> {
        let mut heights = Vec::with_capacity(points.len());
        for batch in points.chunks(BATCH) {
            self.batch(batch, &mut heights).await?;
        }
        Ok(heights)
    }

    async fn batch(&self, points: &[Point], heights: &mut Vec<Option<Height>>) -> Result<(), TilesError> {
        let first = heights.len();
        heights.resize(first + points.len(), None);
        let covered = points.iter().enumerate().filter(|(_, point)| covers(**point));
        let mut open: Vec<(usize, World)> = covered.map(|(index, point)| (first + index, World::of(*point))).collect();
        for &layer in &self.layers {
            if open.is_empty() {
                break;
            }
            for (index, metres) in self.fill(layer, &mut open).await? {
                heights[index] = Some(Height { metres, layer });
            }
        }
        Ok(())
    }

    /// Takes from `open` what this layer has a height for.
    pub(crate) async fn fill<K: Copy>(
        &self,
        layer: Layer,
        open: &mut Vec<(K, World)>,
    ) -> Result<Vec<(K, f64)>, TilesError> {
        let zoom = layer.zoom();
        let squares: Vec<(K, World, Square)> =
            open.iter().map(|(key, world)| (*key, *world, world.square(zoom))).collect();
        // First the tile of the point alone: most points that a layer lacks lie far from what it has.
        let mut held = Held::new(layer, zoom);
        held.fetch(&self.tiles, squares.iter().map(|(.., square)| square.home)).await?;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            squares.into_iter().partition(|(.., square)| held.height(square.home).is_some());
        *open = elsewhere.into_iter().map(|(key, world, _)| (key, world)).collect();
        let corners = here.iter().flat_map(|(.., square)| square.corners.map(|(corner, _)| corner));
        held.fetch(&self.tiles, corners).await?;
        let blend = |(key, _, square): (K, World, Square)| {
            let heights = square.corners.map(|(corner, _)| held.height(corner));
            Some((key, to_metres(square.blend(heights)?)))
        };
        Ok(here.into_iter().filter_map(blend).collect())
    }

    pub(crate) fn tiles(&self) -> &T {
        &self.tiles
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }
}

/// The tiles of one layer that a batch needs, by column and row.
struct Held<S> {
    layer: Layer,
    zoom: Zoom,
    tiles: BTreeMap<(u32, u32), Option<S>>,
}

impl<S: Deref<Target = Tile>> Held<S> {
    fn new(layer: Layer, zoom: Zoom) -> Self {
        Self { layer, zoom, tiles: BTreeMap::new() }
    }

    async fn fetch<T: Tiles<Shared = S>>(
        &mut self,
        tiles: &T,
        pixels: impl Iterator<Item = Pixel>,
    ) -> Result<(), TilesError> {
        // Neighbours along a line are mostly in the same tile, so most are gone before anything is sorted.
        let mut wanted: Vec<(u32, u32)> = Vec::new();
        for tile in pixels.map(Pixel::tile) {
            if wanted.last() != Some(&tile) && !self.tiles.contains_key(&tile) {
                wanted.push(tile);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        let Self { layer, zoom, .. } = *self;
        let fetches = wanted.into_iter().map(|(x, y)| async move {
            let tile = tiles.tile(TileId { layer, zoom, x, y }).await?;
            Ok(((x, y), tile))
        });
        let mut fetched = stream::iter(fetches).buffered(AT_ONCE);
        while let Some((place, tile)) = fetched.try_next().await? {
            self.tiles.insert(place, tile);
        }
        Ok(())
    }

    fn height(&self, pixel: Pixel) -> Option<i32> {
        height_in(self.tiles.get(&pixel.tile())?.as_ref()?, pixel)
    }
}

fn height_in(tile: &Tile, pixel: Pixel) -> Option<i32> {
    let (x, y) = pixel.within();
    tile.cm(x, y)
}

fn to_metres(cm: f64) -> f64 {
    cm / 100.0
}
