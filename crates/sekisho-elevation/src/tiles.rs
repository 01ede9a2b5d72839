//! Where tiles come from.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use crate::mercator::TileId;
use crate::tile::{Tile, TileError};

/// Gives decoded tiles; in the server that is the tiered cache, whose memory holds them in this form.
///
/// `Ok(None)` is a tile that GSI does not have, and is as final as a hole in one. A tile that could not be had is an
/// error: to take it for a hole would give the height of a worse layer, and another one tomorrow.
///
/// A tile at hand must not cost an allocation, so the future is the implementation's own and not boxed, and the tile is
/// shared as the implementation shares it.
pub trait Tiles: Sync {
    /// Such as `Arc<Tile>`.
    type Shared: Deref<Target = Tile> + Send + Sync;

    fn tile(&self, id: TileId) -> impl Future<Output = Result<Option<Self::Shared>, TilesError>> + Send;
}

/// Gives tiles as they came from GSI, PNG or text. [`Decoding`] makes [`Tiles`] of it, for whoever has no cache.
pub trait TileBytes: Sync {
    type Bytes: AsRef<[u8]> + Send;

    /// `Err` says in words why the tile could not be had; `Ok(None)` that there is none.
    fn bytes(&self, id: TileId) -> impl Future<Output = Result<Option<Self::Bytes>, String>> + Send;
}

/// Decodes a tile whenever it is asked for.
#[derive(Debug, Clone)]
pub struct Decoding<B>(pub B);

impl<B: TileBytes> Tiles for Decoding<B> {
    type Shared = Arc<Tile>;

    async fn tile(&self, id: TileId) -> Result<Option<Arc<Tile>>, TilesError> {
        let bytes = self.0.bytes(id).await.map_err(|reason| TilesError::Unavailable { id, reason })?;
        let decode = |bytes: B::Bytes| match Tile::decode(bytes.as_ref()) {
            Ok(tile) => Ok(Arc::new(tile)),
            Err(error) => Err(TilesError::Unreadable { id, error }),
        };
        bytes.map(decode).transpose()
    }
}

impl<T: Tiles + Send> Tiles for Arc<T> {
    type Shared = T::Shared;

    fn tile(&self, id: TileId) -> impl Future<Output = Result<Option<T::Shared>, TilesError>> + Send {
        T::tile(self, id)
    }
}

impl<T: Tiles> Tiles for &T {
    type Shared = T::Shared;

    fn tile(&self, id: TileId) -> impl Future<Output = Result<Option<T::Shared>, TilesError>> + Send {
        T::tile(self, id)
    }
}

/// A tile was not to be had, so a height is not known now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TilesError {
    /// Trying again later can succeed.
    #[error("tile {id} is not to be had: {reason}")]
    Unavailable { id: TileId, reason: String },
    /// Where it comes from something is wrong.
    #[error("tile {id} cannot be read: {error}")]
    Unreadable { id: TileId, error: TileError },
}

impl TilesError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}
