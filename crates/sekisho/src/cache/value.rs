//! A value in memory with all that is known of it: one allocation, so that a hit touches one place more than it must.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::l1::Weighed;
use super::origin::Validators;
use super::refresh::Hits;

/// A value that all who asked for it share. Clones cost next to nothing.
pub struct Value<T>(Arc<Body<T>>);

/// In this order: what every hit looks at lies next to the count of who has it.
#[repr(C)]
struct Body<T> {
    times: Times,
    hits: Hits,
    bytes: u64,
    content: Content<T>,
    validators: Validators,
}

enum Content<T> {
    Own(T),
    /// The same as that one, of which the origin has said that it has not changed.
    Of(Value<T>),
}

/// By this process's clock, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When it was written.
    pub(super) born: u64,
    /// Worked out when it came, so that a hit only compares.
    pub(super) fresh_until: u64,
    pub(super) kept_at: u64,
    /// Of those who hear of changes, when it came.
    pub(super) epoch: u64,
}

/// What this process has of a key.
#[derive(Debug)]
pub(super) enum Held<T> {
    Value(Value<T>),
    /// The origin has nothing there.
    Missing(Arc<Times>),
}

impl<T> Value<T> {
    /// `weight` is what `value` takes in memory.
    pub(super) fn new(value: T, weight: usize, validators: Validators, times: Times) -> Self {
        Self::of(Content::Own(value), weight as u64, validators, times)
    }

    /// The same value as if it had come now.
    pub(super) fn renewed(&self, times: Times) -> Self {
        let first = match &self.0.content {
            Content::Own(_) => self,
            Content::Of(first) => first,
        };
        Self::of(Content::Of(first.clone()), first.0.bytes, self.0.validators.clone(), times)
    }

    fn of(content: Content<T>, weight: u64, validators: Validators, times: Times) -> Self {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let beside = size_of::<Body<T>>() + text(&validators.etag) + text(&validators.last_modified);
        Self(Arc::new(Body { times, hits: Hits::default(), bytes: weight + beside as u64, content, validators }))
    }

    pub(super) fn times(&self) -> &Times {
        &self.0.times
    }

    pub(super) fn hits(&self) -> &Hits {
        &self.0.hits
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq::<T>(&**self, &**other)
    }
}

impl<T> Held<T> {
    #[inline]
    pub(super) fn times(&self) -> &Times {
        match self {
            Self::Value(value) => value.times(),
            Self::Missing(times) => times,
        }
    }

    pub(super) fn value(&self) -> Option<&Value<T>> {
        match self {
            Self::Value(value) => Some(value),
            Self::Missing(_) => None,
        }
    }

    pub(super) fn validators(&self) -> Validators {
        self.value().map(|value| value.0.validators.clone()).unwrap_or_default()
    }
}

impl<T> Weighed for Held<T> {
    fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.value().map_or(size_of::<Times>() as u64, |value| value.0.bytes)
    }
}

impl<T> Deref for Value<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0.content {
            Content::Own(value) => value,
            Content::Of(first) => first,
        }
    }
}

impl<T> Clone for Value<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Clone for Held<T> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::Value(value) => Self::Value(value.clone()),
            Self::Missing(times) => Self::Missing(Arc::clone(times)),
        }
    }
}

impl<T: PartialEq> PartialEq for Value<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: fmt::Debug> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_it_is_renewed_a_value_is_one_step_away() {
        let times = Times { born: 1, fresh_until: 9, kept_at: 1, epoch: 0 };
        let etag = Some("\"1\"".to_owned());
        let first = Value::new(vec![7_u8; 100], 100, Validators { etag, last_modified: None }, times);
        let mut last = first.clone();
        for born in 2..10 {
            last = last.renewed(Times { born, ..times });
            assert!(last.is_same(&first) && *last == *first && last.times().born == born);
            assert_eq!(Held::Value(last.clone()).validators(), Held::Value(first.clone()).validators());
        }
        assert_eq!(Arc::strong_count(&first.0), 2, "those between are gone");
        assert!(Held::Value(last).bytes() < 2 * Held::Value(first).bytes() + 100, "it does not grow by that either");
    }
}
