//! What was registered through the `metrics` facade, and Prometheus's text of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
use parking_lot::Mutex;

use super::tally::{Level, Spread, Tally};

/// Every server has one of its own.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Bounds of a distribution, by how its name ends; the last ones are for all others.
    bounds: [(&'static str, &'static [f64]); 2],
    families: Mutex<BTreeMap<String, Family>>,
}

#[derive(Debug, Default)]
struct Family {
    help: Option<SharedString>,
    /// By their labels as they are written.
    series: BTreeMap<String, Series>,
}

#[derive(Debug, Clone)]
enum Series {
    Counter(Arc<Tally>),
    Gauge(Arc<Level>),
    Histogram(Arc<Spread>),
}

impl Recorder {
    pub(super) fn new(bounds: [(&'static str, &'static [f64]); 2]) -> Self {
        Self { bounds, families: Mutex::default() }
    }

    fn describe(&self, name: &KeyName, help: SharedString) {
        self.families.lock().entry(name.as_str().to_owned()).or_default().help = Some(help);
    }

    fn register(&self, key: &Key, new: impl FnOnce() -> Series) -> Series {
        let mut families = self.families.lock();
        let family = families.entry(key.name().to_owned()).or_default();
        family.series.entry(labels(key)).or_insert_with(new).clone()
    }

    fn bounds(&self, name: &str) -> &'static [f64] {
        let [first, last] = &self.bounds;
        if name.ends_with(first.0) { first.1 } else { last.1 }
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for (name, family) in self.families.lock().iter() {
            if let Some(series) = family.series.values().next() {
                family.write(name, series.kind(), &mut text);
            }
        }
        text
    }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.register(key, || Series::Counter(Arc::new(Tally::new()))) {
            Series::Counter(counter) => Counter::from_arc(counter),
            // The same name and labels as something else's: nothing of ours is.
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.register(key, || Series::Gauge(Arc::new(Level::new()))) {
            Series::Gauge(gauge) => Gauge::from_arc(gauge),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.register(key, || Series::Histogram(Arc::new(Spread::new(self.bounds(key.name()))))) {
            Series::Histogram(histogram) => Histogram::from_arc(histogram),
            _ => Histogram::noop(),
        }
    }
}

impl Series {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl Family {
    fn write(&self, name: &str, kind: &str, text: &mut String) {
        if let Some(help) = &self.help {
            let _infallible = writeln!(text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
        }
        let _infallible = writeln!(text, "# TYPE {name} {kind}");
        for (labels, series) in &self.series {
            let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _infallible = match series {
                Series::Counter(counter) => writeln!(text, "{name}{braced} {}", counter.total()),
                Series::Gauge(gauge) => writeln!(text, "{name}{braced} {}", gauge.height()),
                Series::Histogram(spread) => write_spread(name, labels, &braced, spread, text),
            };
        }
    }
}

/// Prometheus counts under a bound whatever is under the ones before it, too.
fn write_spread(name: &str, labels: &str, braced: &str, spread: &Spread, text: &mut String) -> std::fmt::Result {
    let (counts, sum) = spread.read();
    let (mut under, comma) = (0, if labels.is_empty() { "" } else { "," });
    let bounds = spread.bounds().iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(counts) {
        under += count;
        writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {under}")?;
    }
    writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {under}")
}

/// As they stand between the braces.
fn labels(key: &Key) -> String {
    let mut text = String::new();
    for label in key.labels() {
        let comma = if text.is_empty() { "" } else { "," };
        let value = label.value().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _infallible = write!(text, "{comma}{}=\"{value}\"", label.key());
    }
    text
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, gauge, histogram, with_local_recorder};

    use super::*;

    #[test]
    fn a_text_says_what_was_registered_and_counted() {
        let recorder = Recorder::new([("_seconds", &[0.1, 1.0]), ("", &[5.0])]);
        with_local_recorder(&recorder, || {
            describe_counter!("a_total", "Of\nsome \\ kind");
            counter!("a_total", "who" => "x\"y\\z\n", "why" => "b").increment(3);
            counter!("a_total", "who" => "x\"y\\z\n", "why" => "b").increment(1);
            gauge!("b").set(1.5);
            histogram!("c_seconds", "who" => "me").record(0.1);
            histogram!("c_seconds", "who" => "me").record(2.0);
            histogram!("d_requests").record(7.0);
            // Another kind of thing under the same name is nothing.
            gauge!("a_total", "who" => "x\"y\\z\n", "why" => "b").set(9.0);
        });
        let text = r#"# HELP a_total Of\nsome \\ kind
# TYPE a_total counter
a_total{who="x\"y\\z\n",why="b"} 4
# TYPE b gauge
b 1.5
# TYPE c_seconds histogram
c_seconds_bucket{who="me",le="0.1"} 1
c_seconds_bucket{who="me",le="1"} 1
c_seconds_bucket{who="me",le="+Inf"} 2
c_seconds_sum{who="me"} 2.1
c_seconds_count{who="me"} 2
# TYPE d_requests histogram
d_requests_bucket{le="5"} 0
d_requests_bucket{le="+Inf"} 1
d_requests_sum 7
d_requests_count 1
"#;
        assert_eq!(recorder.render(), text);
    }
}
