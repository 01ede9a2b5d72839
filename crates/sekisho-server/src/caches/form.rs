//! Values as the API hands them out: bytes that all who ask share.

use axum::body::Bytes;
use sekisho::cache::{Form, Shape};
use serde_json::{Map, Value};

#[derive(Debug)]
pub(crate) struct Content {
    is_object: bool,
}

impl Content {
    pub(super) fn new(shape: Shape) -> Self {
        Self { is_object: shape == Shape::Json }
    }
}

impl Form for Content {
    type Value = Bytes;

    fn decode(&self, content: &[u8]) -> Result<Bytes, String> {
        if self.is_object {
            let read = serde_json::from_slice::<Map<String, Value>>(content);
            read.map_err(|error| format!("is no JSON object: {error}"))?;
        }
        Ok(Bytes::copy_from_slice(content))
    }

    fn weight(&self, value: &Bytes) -> usize {
        value.len()
    }
}
