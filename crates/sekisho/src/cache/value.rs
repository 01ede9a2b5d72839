//! A value in memory with all that is known of it: one allocation and one pointer to it, so that a hit touches no more places
//! than it must.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::l1::Weighed;
use super::origin::Validators;
use super::refresh::Hits;

/// A value that all who asked for it share. Clones cost next to nothing.
pub struct Value<T>(Arc<Body<T>>);

/// In this order: what every hit looks at lies next to the count of who has it, in most cases in the same line of the processor's cache,
/// and behind it what a hit before a shared store looks at.
#[repr(C)]
pub(super) struct Body<T> {
    /// Of a value; what is missing is looked at more closely.
    good_until: u64,
    born: u64,
    epoch: u64,
    hits: Hits,
    fresh_until: u64,
    kept_at: u64,
    bytes: u64,
    content: Content<T>,
    validators: Validators,
}

enum Content<T> {
    Own(T),
    /// The same as that one, of which the origin has said that it has not changed.
    Of(Value<T>),
    /// The origin has nothing there. No `Value` that anybody is given has this.
    Missing,
}

/// By this process's clock, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Worked out when it came, so that a hit only compares.
    pub(super) fresh_until: u64,
    /// The same, and not for longer than it is believed while changes are heard of.
    pub(super) good_until: u64,
    /// When it was written.
    pub(super) born: u64,
    pub(super) kept_at: u64,
    /// Of those who hear of changes, when it came.
    pub(super) epoch: u64,
}

/// What this process has of a key: a value, or that the origin has nothing there.
pub(super) struct Held<T>(Value<T>);

impl<T> Value<T> {
    /// Whether it has been here before, and the origin has said that it has not changed.
    pub fn is_unchanged(&self) -> bool {
        matches!(self.0.content, Content::Of(_))
    }

    #[inline]
    pub(super) fn body(&self) -> &Arc<Body<T>> {
        &self.0
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq::<T>(&**self, &**other)
    }
}

impl<T> Body<T> {
    #[inline]
    pub(super) fn hits(&self) -> &Hits {
        &self.hits
    }
}

impl<T> Held<T> {
    /// `weight` is what `value` takes in memory.
    pub(super) fn new(value: T, weight: usize, validators: Validators, times: Times) -> Self {
        Self::of(Content::Own(value), weight as u64, validators, times)
    }

    pub(super) fn missing(times: Times) -> Self {
        Self::of(Content::Missing, 0, Validators::default(), Times { good_until: 0, ..times })
    }

    /// The same as if it had come now.
    pub(super) fn renewed(&self, times: Times) -> Self {
        let first = match &self.0.0.content {
            Content::Missing => return Self::missing(times),
            Content::Own(_) => &self.0,
            Content::Of(first) => first,
        };
        Self::of(Content::Of(first.clone()), first.0.bytes, self.validators(), times)
    }

    fn of(content: Content<T>, weight: u64, validators: Validators, times: Times) -> Self {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let beside = size_of::<Body<T>>() + text(&validators.etag) + text(&validators.last_modified);
        let (bytes, hits) = (weight + beside as u64, Hits::default());
        let Times { fresh_until, good_until, born, kept_at, epoch } = times;
        let body = Body { good_until, born, epoch, hits, fresh_until, kept_at, bytes, content, validators };
        Self(Value(Arc::new(body)))
    }

    /// Until when it is a value and fresh, and believed if no change was missed.
    #[inline]
    pub(super) fn good_until(&self) -> u64 {
        self.0.0.good_until
    }

    /// When it was written.
    #[inline]
    pub(super) fn born(&self) -> u64 {
        self.0.0.born
    }

    pub(super) fn fresh_until(&self) -> u64 {
        self.0.0.fresh_until
    }

    pub(super) fn kept_at(&self) -> u64 {
        self.0.0.kept_at
    }

    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.0.0.epoch
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self.0.0.content, Content::Missing)
    }

    pub(super) fn value(&self) -> Option<&Value<T>> {
        (!self.is_missing()).then_some(&self.0)
    }

    /// Of what is good now, and therefore a value.
    #[inline]
    pub(super) fn into_good(self) -> Value<T> {
        self.0
    }

    pub(super) fn into_value(self) -> Option<Value<T>> {
        if self.is_missing() { None } else { Some(self.0) }
    }

    pub(super) fn validators(&self) -> Validators {
        self.0.0.validators.clone()
    }
}

impl<T> Weighed for Held<T> {
    fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.0.0.bytes
    }
}

impl<T> Deref for Value<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0.content {
            Content::Own(value) => value,
            Content::Of(first) => first,
            Content::Missing => unreachable!("what is missing is given to nobody"),
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
        Self(self.0.clone())
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

impl<T> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("is_missing", &self.is_missing()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_it_is_renewed_a_value_is_one_step_away() {
        let times = Times { fresh_until: 9, good_until: 9, born: 1, kept_at: 1, epoch: 0 };
        let etag = Some("\"1\"".to_owned());
        let first = Held::new(vec![7_u8; 100], 100, Validators { etag, last_modified: None }, times);
        let mut last = first.clone();
        for born in 2..10 {
            last = last.renewed(Times { born, ..times });
            assert!(last.0.is_same(&first.0) && *last.0 == *first.0 && last.born() == born);
            assert_eq!(last.validators(), first.validators());
        }
        assert_eq!(Arc::strong_count(&first.0.0), 2, "those between are gone");
        assert!(last.bytes() < 2 * first.bytes() + 100, "it does not grow by that either");
    }

    #[test]
    fn what_is_missing_is_never_a_good_value() {
        let times = Times { fresh_until: 9, good_until: 9, born: 1, kept_at: 1, epoch: 0 };
        let missing = Held::<u8>::missing(times);
        assert_eq!([missing.good_until(), missing.renewed(times).good_until()], [0, 0]);
        assert!(missing.is_missing() && missing.fresh_until() == 9 && missing.into_value().is_none());
    }
}
