//! The two forms of a value: bytes in the store, something ready for use in memory.

/// Makes of an origin's bytes what callers want. That is done once for each time that a value comes into memory.
pub trait Form: Send + Sync + 'static {
    type Value: Send + Sync + 'static;

    /// Says why, if the bytes are none of a value. They are then not kept, or removed.
    fn decode(&self, content: &[u8]) -> Result<Self::Value, String>;

    /// The bytes that it takes in memory.
    fn weight(&self, value: &Self::Value) -> usize;
}

/// As it came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Form for Raw {
    type Value = Vec<u8>;

    fn decode(&self, content: &[u8]) -> Result<Vec<u8>, String> {
        Ok(content.to_vec())
    }

    fn weight(&self, value: &Vec<u8>) -> usize {
        value.capacity()
    }
}
