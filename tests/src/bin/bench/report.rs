//! Comparisons: what they consist of, as a table and as JSON.

use std::fmt::Write as _;

/// One comparison, of rounds that were run in pairs.
pub struct Row {
    what: String,
    unit: &'static str,
    baseline: Sample,
    subject: Sample,
    ratio: f64,
    /// Servers that took part, where their number is what matters.
    servers: Option<usize>,
}

struct Sample {
    median: f64,
    least: f64,
    most: f64,
}

impl Row {
    /// The ratio is the median of the pairs' own: what else the machine does meanwhile hits both
    /// halves of a pair.
    pub fn new(
        what: impl Into<String>,
        unit: &'static str,
        baseline: Vec<f64>,
        subject: Vec<f64>,
    ) -> Self {
        let ratios = baseline.iter().zip(&subject).map(|(b, s)| s / b).collect();
        Self {
            what: what.into(),
            unit,
            ratio: sample(ratios).median,
            servers: None,
            baseline: sample(baseline),
            subject: sample(subject),
        }
    }

    /// The subject ran on so many servers, the baseline on one.
    pub fn with_servers(mut self, servers: usize) -> Self {
        self.servers = Some(servers);
        self
    }

    pub fn what(&self) -> &str {
        &self.what
    }

    /// Between the medians, subject less baseline.
    pub fn difference(&self) -> f64 {
        self.subject.median - self.baseline.median
    }

    /// Speed-up and its part of the number of servers.
    fn scaling(&self) -> Option<(f64, f64)> {
        let servers = self.servers? as f64;
        Some((1.0 / self.ratio, 1.0 / self.ratio / servers))
    }
}

fn sample(mut values: Vec<f64>) -> Sample {
    values.sort_by(f64::total_cmp);
    Sample {
        median: values[values.len() / 2],
        least: values[0],
        most: values[values.len() - 1],
    }
}

pub fn print_table(rows: &[Row], [baseline, subject]: [&str; 2]) {
    println!("\n{:>7}  {baseline:>22}  {subject:>22}", "ratio");
    for row in rows {
        println!(
            "{:7.3}  {:>22}  {:>22}  {:4} {}{}",
            row.ratio,
            cell(&row.baseline),
            cell(&row.subject),
            row.unit,
            row.what,
            match row.scaling() {
                Some((speed_up, efficiency)) =>
                    format!(": speed-up {speed_up:.2}, efficiency {efficiency:.2}"),
                None => String::new(),
            }
        );
    }
    println!("\nmedian (least-most); ratio is {subject} / {baseline}, the median of the pairs");
}

fn cell(sample: &Sample) -> String {
    format!(
        "{:.0} ({:.0}-{:.0})",
        sample.median, sample.least, sample.most
    )
}

pub fn json(name: &str, rows: &[Row]) -> String {
    let mut text = format!("{{\"benchmark\": \"{name}\", \"rows\": [\n");
    for (index, row) in rows.iter().enumerate() {
        let comma = if index + 1 < rows.len() { "," } else { "" };
        let (b, s) = (&row.baseline, &row.subject);
        let scaling = row
            .scaling()
            .map_or_else(String::new, |(speed_up, efficiency)| {
                format!("\"speed_up\": {speed_up:.3}, \"efficiency\": {efficiency:.3}, ")
            });
        let _ = writeln!(
            text,
            "  {{\"what\": \"{}\", \"unit\": \"{}\", \"ratio\": {:.4}, {scaling}\
             \"without\": [{:.3}, {:.3}, {:.3}], \"with\": [{:.3}, {:.3}, {:.3}]}}{comma}",
            row.what, row.unit, row.ratio, b.least, b.median, b.most, s.least, s.median, s.most
        );
    }
    text.push_str("]}\n");
    text
}
