//! The parts of a script's answer, one after the other.

use redis::Value;

use crate::error::Error;

pub(in crate::cache) struct Reply {
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(in crate::cache) fn of(value: Value) -> Result<Self, Error> {
        match value {
            Value::Array(values) => Ok(Self { rest: values.into_iter() }),
            _ => Err(odd("it is no list")),
        }
    }

    fn next(&mut self) -> Value {
        self.rest.next().unwrap_or(Value::Nil)
    }

    pub(in crate::cache) fn next_int(&mut self) -> Result<i64, Error> {
        match self.next() {
            Value::Int(number) => Ok(number),
            _ => Err(odd("a number is missing")),
        }
    }

    pub(in crate::cache) fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            _ => Err(odd("bytes are missing")),
        }
    }

    /// `None` also for what is no text: others may write anything.
    pub(in crate::cache) fn next_text(&mut self) -> Result<Option<String>, Error> {
        Ok(self.next_bytes()?.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    /// As somebody wrote it; older clients may write a fraction too.
    pub(in crate::cache) fn next_number(&mut self) -> Result<Option<u64>, Error> {
        let text = self.next_text()?;
        Ok(text.and_then(|text| text.split('.').next().unwrap_or_default().trim().parse().ok()))
    }
}

pub(in crate::cache) fn odd(reason: &str) -> Error {
    Error::Corrupt { key: "a script reply".to_owned(), reason: reason.to_owned() }
}
