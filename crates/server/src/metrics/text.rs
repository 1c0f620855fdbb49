//! Families of numbers as the text that collectors read, in either of its two forms.
//!
//! # Guarantee
//! - A family's samples stand together under one `# TYPE` and one `# HELP`.
//! - Numbers are written exactly: no float is ever involved.
//! - What Prometheus's older text cannot say is said as it did before: an info is a gauge, a
//!   counter's family has the name of its samples, and units and the end are left out.

use std::fmt::Write;

/// Numbers that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What it is called, without what counters, infos and buckets end in.
    pub name: &'static str,
    /// What kind of numbers.
    pub kind: Kind,
    /// What they say.
    pub help: &'static str,
    /// Each of them.
    pub samples: Vec<Sample>,
}

/// What kind of numbers a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
    /// How often something was at most so much.
    Histogram,
    /// Always 1: the labels say it.
    Info,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What stands behind the family's name, beyond what its kind says.
    pub suffix: &'static str,
    /// What it is about.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: Value,
}

/// A number that is written exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A whole one.
    Whole(u64),
    /// One in millionths.
    Millionths(i128),
    /// One in billionths, such as nanoseconds as seconds.
    Billionths(u64),
}

/// Which of the two forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

impl Family {
    /// A family without samples yet.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, samples: Vec::new() }
    }

    /// With one more sample.
    #[must_use]
    pub fn with(mut self, labels: Vec<(&'static str, String)>, value: u64) -> Self {
        self.push(labels, Value::Whole(value));
        self
    }

    /// Takes one more sample.
    pub fn push(&mut self, labels: Vec<(&'static str, String)>, value: Value) {
        self.samples.push(Sample { suffix: "", labels, value });
    }
}

impl Kind {
    const fn name(self, form: Form) -> &'static str {
        match (self, form) {
            (Self::Counter, _) => "counter",
            (Self::Histogram, _) => "histogram",
            (Self::Info, Form::OpenMetrics) => "info",
            (Self::Gauge | Self::Info, _) => "gauge",
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

impl Form {
    /// What a response in this form is declared as.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The form that a request with this `Accept` wants: the one it gives more weight, and
    /// OpenMetrics if it does not say.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let mut weights: [Option<u32>; 3] = [None; 3];
        for offer in accept.split(',') {
            let mut parts = offer.split(';').map(str::trim);
            let place = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => 0,
                "text/plain" | "text/*" => 1,
                "*/*" | "application/*" => 2,
                _ => continue,
            };
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1_000, thousandths);
            weights[place] = weights[place].max(Some(weight));
        }
        let open = weights[0].or(weights[2]);
        match (open, weights[1]) {
            (None, Some(_)) => Self::Prometheus,
            (Some(open), Some(plain)) if plain > open => Self::Prometheus,
            _ => Self::OpenMetrics,
        }
    }
}

/// A weight between 0 and 1, in thousandths; what is none counts fully.
fn thousandths(text: &str) -> u32 {
    let (whole, parts) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = parts.chars().chain("000".chars()).take(3).collect();
    match (whole.trim().parse::<u32>(), digits.parse::<u32>()) {
        (Ok(whole), Ok(parts)) => whole.saturating_mul(1_000).saturating_add(parts).min(1_000),
        _ => 1_000,
    }
}

/// Families as text. One that has no samples is left out.
#[must_use]
pub(crate) fn written(families: &[Family], form: Form) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let Family { name, kind, help, samples } = family;
        let ending = match form {
            Form::OpenMetrics => "",
            Form::Prometheus => kind.suffix(),
        };
        let _ = writeln!(text, "# TYPE {name}{ending} {}", kind.name(form));
        if let (Form::OpenMetrics, Some(unit)) = (form, unit(name)) {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name}{ending} {}", escaped(help));
        for sample in samples {
            text.push_str(name);
            text.push_str(kind.suffix());
            text.push_str(sample.suffix);
            for (place, (label, value)) in sample.labels.iter().enumerate() {
                let before = if place == 0 { '{' } else { ',' };
                let value = escaped(value).replace('"', "\\\"");
                let _ = write!(text, "{before}{label}=\"{value}\"");
            }
            let end = if sample.labels.is_empty() { "" } else { "}" };
            let _ = writeln!(text, "{end} {}", sample.value.text());
        }
    }
    if form == Form::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// The base unit that a name ends in, if it does.
fn unit(name: &str) -> Option<&str> {
    let (_, last) = name.rsplit_once('_')?;
    matches!(last, "seconds" | "bytes" | "ratio").then_some(last)
}

impl Value {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Millionths(number) => decimal(number, 6),
            Self::Billionths(number) => decimal(number.into(), 9),
        }
    }
}

/// A number of parts as a decimal, exactly.
fn decimal(parts: i128, places: usize) -> String {
    let sign = if parts < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", parts.unsigned_abs(), width = places + 1);
    let (whole, parts) = digits.split_at(digits.len() - places);
    let parts = parts.trim_end_matches('0');
    let point = if parts.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{parts}")
}

fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> [Family; 4] {
        let label = |value: &str| vec![("class", value.to_owned())];
        let mut ratio = Family::new("a_level_ratio", Kind::Gauge, "What it says.");
        ratio.push(Vec::new(), Value::Millionths(250_000));
        [
            Family::new("a_refused", Kind::Counter, "One\nline.")
                .with(label("critical"), 3)
                .with(label("a\"b\\c"), 0),
            ratio,
            Family::new("a_nothing", Kind::Gauge, "Never there."),
            Family::new("a_build", Kind::Info, "What runs.").with(label("x"), 1),
        ]
    }

    #[test]
    fn families_stand_together_and_counters_end_in_total() {
        let expected = "\
# TYPE a_refused counter
# HELP a_refused One\\nline.
a_refused_total{class=\"critical\"} 3
a_refused_total{class=\"a\\\"b\\\\c\"} 0
# TYPE a_level_ratio gauge
# UNIT a_level_ratio ratio
# HELP a_level_ratio What it says.
a_level_ratio 0.25
# TYPE a_build info
# HELP a_build What runs.
a_build_info{class=\"x\"} 1
# EOF
";
        assert_eq!(written(&families(), Form::OpenMetrics), expected);
    }

    #[test]
    fn the_older_text_names_families_after_their_samples() {
        let expected = "\
# TYPE a_refused_total counter
# HELP a_refused_total One\\nline.
a_refused_total{class=\"critical\"} 3
a_refused_total{class=\"a\\\"b\\\\c\"} 0
# TYPE a_level_ratio gauge
# HELP a_level_ratio What it says.
a_level_ratio 0.25
# TYPE a_build_info gauge
# HELP a_build_info What runs.
a_build_info{class=\"x\"} 1
";
        assert_eq!(written(&families(), Form::Prometheus), expected);
    }

    #[test]
    fn a_collector_gets_the_form_that_it_prefers() {
        use Form::{OpenMetrics, Prometheus};
        for (accept, form) in [
            ("", OpenMetrics),
            ("*/*", OpenMetrics),
            ("text/html", OpenMetrics),
            ("text/plain", Prometheus),
            ("text/plain;version=0.0.4", Prometheus),
            ("application/openmetrics-text;version=1.0.0", OpenMetrics),
            ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4", OpenMetrics),
            ("application/openmetrics-text;q=0.3, text/plain;version=0.0.4;q=0.9", Prometheus),
            ("text/plain;q=0.5, */*;q=0.1", Prometheus),
            ("text/plain;q=zero, */*;q=0.1", Prometheus),
        ] {
            assert_eq!(Form::accepted(accept), form, "{accept}");
        }
    }

    #[test]
    fn numbers_are_exact() {
        for (value, text) in [
            (Value::Millionths(0), "0"),
            (Value::Millionths(1), "0.000001"),
            (Value::Millionths(-1_500_000), "-1.5"),
            (Value::Millionths(i128::from(u64::MAX) * 1_000_000), "18446744073709551615"),
            (Value::Billionths(1_000_000_001), "1.000000001"),
            (Value::Billionths(2_500), "0.0000025"),
            (Value::Whole(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(value.text(), text);
        }
    }
}
