//! JSON straight into its bytes, for what every request is answered with: serde would look at each byte of each name, whether it
//! has to be escaped.

use serde::Serialize;

/// A name as it stands in an object, with what comes before and after it.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}
pub(super) use name;

/// An object that is being written. Every field brings a comma; the first of them becomes the brace.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Object<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    pub(super) fn number(&mut self, name: &'static str, value: u64) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    pub(super) fn truth(&mut self, name: &'static str, value: bool) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub(super) fn text(&mut self, name: &'static str, value: &str) {
        self.out.extend_from_slice(name.as_bytes());
        let is_plain = value.bytes().fold(true, |plain, byte| plain & (byte >= b' ' && byte != b'"' && byte != b'\\'));
        if is_plain {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else {
            append(self.out, &value);
        }
    }

    /// Objects, each written by `write`.
    pub(super) fn objects<T>(&mut self, name: &'static str, items: &[T], write: impl Fn(&T, &mut Object<'_>)) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'[');
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                self.out.push(b',');
            }
            let mut object = Object::begin(self.out);
            write(item, &mut object);
            object.end();
        }
        self.out.push(b']');
    }

    pub(super) fn end(self) {
        match self.out.get_mut(self.start) {
            Some(first) => *first = b'{',
            None => self.out.push(b'{'),
        }
        self.out.push(b'}');
    }
}

/// What serde knows how to write. Nothing of ours fails: there are no maps whose keys are not text.
pub(super) fn append(out: &mut Vec<u8>, value: &impl Serialize) {
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "an answer could not be written as JSON");
        out.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn nothing_in_it_is_an_object_too() {
        let mut out = Vec::new();
        Object::begin(&mut out).end();
        assert_eq!(out, b"{}");
    }

    proptest! {
        /// Whatever stands in a text.
        #[test]
        fn it_is_what_serde_writes(text: String, number: u64, truth: bool, items: Vec<String>) {
            let mut out = b"before ".to_vec();
            let mut object = Object::begin(&mut out);
            object.text(name!("text"), &text);
            object.number(name!("number"), number);
            object.truth(name!("truth"), truth);
            object.objects(name!("items"), &items, |item, object| object.text(name!("item"), item));
            object.end();
            let written: serde_json::Value = serde_json::from_slice(&out[b"before ".len()..]).unwrap();
            let items: Vec<_> = items.iter().map(|item| json!({ "item": item })).collect();
            prop_assert_eq!(written, json!({ "text": text, "number": number, "truth": truth, "items": items }));
        }
    }
}
