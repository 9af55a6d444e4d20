//! The page: one SVG picture with a legend, in colours for light and for dark, that is XML too.

use super::spans::{Lane, SpanKind};
use std::fmt::Write as _;

/// What stands above the picture.
#[derive(Clone, Debug, Default)]
pub struct Caption {
    pub query_id: String,
    pub text: String,
    /// Pairs of name and value.
    pub facts: Vec<(String, String)>,
}

const LABEL_WIDTH: f64 = 170.0;
const PLOT_WIDTH: f64 = 980.0;
const RIGHT_MARGIN: f64 = 40.0;
const LANE_HEIGHT: f64 = 22.0;
const BAR_HEIGHT: f64 = 16.0;
const AXIS_HEIGHT: f64 = 30.0;
/// Thinnest bar that can be seen.
const BAR_WIDTH_MIN: f64 = 0.75;

/// Class in the style sheet, and words for the legend.
fn look(kind: SpanKind) -> (&'static str, &'static str) {
    match kind {
        SpanKind::Connecting => ("connect", "connecting"),
        SpanKind::Starting => ("start", "greeting and start"),
        SpanKind::ReplayWait => ("replay", "waiting for replay"),
        SpanKind::Own => ("own", "own"),
        SpanKind::StolenByHash => ("hash", "stolen by hash"),
        SpanKind::StolenRest => ("rest", "stolen rest"),
        SpanKind::GivenBack => ("back", "partly given back"),
        SpanKind::Lost => ("lost", "lost or left out"),
        SpanKind::Finishing => ("finish", "finishing and sending"),
    }
}

/// Colours that people who see colours differently can tell apart, after Okabe and Ito, and that stand out from
/// the page and a shaded lane by three to one.
const STYLE: &str = "\
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --faint: #636c77; \
--line: #d8dde3; --lane: #f4f6f8; --own: #0072b2; --hash: #d27212; --rest: #873a76; \
--back: #7916e8; --lost: #bd2308; --finish: #009e73; --connect: #808e9f; --start: #464a4d; \
--replay: #93833f; } \
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e9ed; --faint: #98a2ad; \
--line: #333a42; --lane: #1c2126; --own: #56a8e0; --hash: #e8a040; --rest: #e128ae; \
--back: #8751f8; --lost: #d8402e; --finish: #0bbfa5; --connect: #686d71; --start: #d4dfe7; \
--replay: #f0e442; } } \
body { background: var(--page); color: var(--ink); margin: 24px; \
font: 14px/1.45 system-ui, -apple-system, 'Segoe UI', sans-serif; } \
h1 { font-size: 17px; margin: 0 0 4px; } p { margin: 4px 0; } .faint { color: var(--faint); } \
pre { white-space: pre-wrap; background: var(--lane); padding: 8px 10px; border-radius: 4px; \
max-width: 1170px; font-size: 12.5px; } \
svg { display: block; max-width: 100%; height: auto; margin-top: 12px; } \
svg text { fill: var(--ink); font: 11.5px system-ui, -apple-system, 'Segoe UI', sans-serif; } \
svg .faint { fill: var(--faint); } .lane { fill: var(--lane); } \
.tick { stroke: var(--line); stroke-width: 1; } \
.own { fill: var(--own); } .hash { fill: var(--hash); } .rest { fill: var(--rest); } \
.back { fill: var(--back); } .lost { fill: var(--lost); } .finish { fill: var(--finish); } \
.connect { fill: var(--connect); } .start { fill: var(--start); } .replay { fill: var(--replay); } \
svg rect.bar { stroke: var(--page); stroke-width: 0.4; } \
.legend { list-style: none; padding: 0; margin: 10px 0 0; display: flex; flex-wrap: wrap; \
gap: 4px 18px; } .legend svg { display: inline-block; margin: 0 6px 0 0; vertical-align: -1px; }";

/// The whole page. Any text in it may hold anything.
pub fn html(caption: &Caption, lanes: &[Lane]) -> String {
    let mut page = String::with_capacity(16 << 10);
    let id = escape(&caption.query_id);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n<title>Query {id}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>Query timeline</h1>\n<p class=\"faint\">{id}</p>\n"
    );
    if !caption.text.is_empty() {
        let _ = writeln!(page, "<pre>{}</pre>", escape(&caption.text));
    }
    let facts: Vec<String> = caption
        .facts
        .iter()
        .map(|(name, value)| format!("{}: {}", escape(name), escape(value)))
        .collect();
    let _ = writeln!(page, "<p>{}</p>", facts.join(" · "));
    legend(&mut page, lanes);
    picture(&mut page, lanes);
    page.push_str("</body>\n</html>\n");
    page
}

/// Only what there is.
fn legend(page: &mut String, lanes: &[Lane]) {
    page.push_str("<ul class=\"legend\">\n");
    for kind in SpanKind::ALL {
        let is_there = lanes
            .iter()
            .flat_map(|lane| &lane.spans)
            .any(|span| span.kind == kind);
        if is_there {
            let (class, words) = look(kind);
            let _ = writeln!(
                page,
                "<li><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"12\" height=\"12\">\
                 <rect class=\"{class}\" width=\"12\" height=\"12\"/></svg>{words}</li>"
            );
        }
    }
    page.push_str("</ul>\n");
}

fn picture(page: &mut String, lanes: &[Lane]) {
    let spans = || lanes.iter().flat_map(|lane| &lane.spans);
    let first = spans().map(|span| span.from_us).min().unwrap_or(0);
    let last = spans().map(|span| span.to_us).max().unwrap_or(0);
    let total = (last - first).max(1) as f64;
    let x = |at: i64| LABEL_WIDTH + (at - first) as f64 / total * PLOT_WIDTH;
    let (width, height) = (
        LABEL_WIDTH + PLOT_WIDTH + RIGHT_MARGIN,
        AXIS_HEIGHT + lanes.len() as f64 * LANE_HEIGHT,
    );
    let _ = writeln!(
        page,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"query timeline\" \
         viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">"
    );
    for (index, _) in lanes.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let y = AXIS_HEIGHT + index as f64 * LANE_HEIGHT;
        let _ = writeln!(
            page,
            "<rect class=\"lane\" x=\"0\" y=\"{y}\" width=\"{width}\" height=\"{LANE_HEIGHT}\"/>"
        );
    }
    axis(page, total, height, x, first);
    let fragments = lanes.iter().any(|lane| lane.fragment > 1);
    for (index, lane) in lanes.iter().enumerate() {
        let y = AXIS_HEIGHT + index as f64 * LANE_HEIGHT;
        let _ = writeln!(
            page,
            "<text x=\"8\" y=\"{:.1}\">{}</text>",
            y + LANE_HEIGHT / 2.0 + 4.0,
            escape(&label(lane, fragments))
        );
        for span in &lane.spans {
            let (class, words) = look(span.kind);
            let from = x(span.from_us);
            let length = (x(span.to_us) - from).max(BAR_WIDTH_MIN);
            let _ = writeln!(
                page,
                "<rect class=\"bar {class}\" x=\"{from:.2}\" y=\"{:.1}\" width=\"{length:.2}\" \
                 height=\"{BAR_HEIGHT}\"><title>{words}, {:.3} to {:.3} ms. {}</title></rect>",
                y + (LANE_HEIGHT - BAR_HEIGHT) / 2.0,
                (span.from_us - first) as f64 / 1000.0,
                (span.to_us - first) as f64 / 1000.0,
                escape(&span.text)
            );
        }
    }
    page.push_str("</svg>\n");
}

fn label(lane: &Lane, fragments: bool) -> String {
    let who = match (lane.replica.as_str(), lane.process) {
        ("", 0) => "leader".to_owned(),
        ("", number) => format!("worker {number}"),
        (replica, number) => format!("{replica} #{number}"),
    };
    if fragments {
        format!("{}: {who}", lane.fragment)
    } else {
        who
    }
}

/// Round times, between four and ten of them.
fn axis(page: &mut String, total_us: f64, height: f64, x: impl Fn(i64) -> f64, first: i64) {
    let magnitude = 10_f64.powf((total_us / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * magnitude)
        .into_iter()
        .find(|step| total_us / step <= 10.0)
        .unwrap_or(total_us)
        .max(1.0);
    let mut at = 0.0;
    while at <= total_us {
        let position = x(first + at as i64);
        let _ = writeln!(
            page,
            "<line class=\"tick\" x1=\"{position:.2}\" y1=\"20\" x2=\"{position:.2}\" \
             y2=\"{height}\"/><text class=\"faint\" x=\"{position:.2}\" y=\"14\" \
             text-anchor=\"middle\">{}</text>",
            time(at, step)
        );
        at += step;
    }
}

fn time(micros: f64, step: f64) -> String {
    if step >= 1_000_000.0 {
        format!("{:.0} s", micros / 1_000_000.0)
    } else if step >= 100_000.0 {
        format!("{:.1} s", micros / 1_000_000.0)
    } else if step >= 1000.0 {
        format!("{:.0} ms", micros / 1000.0)
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}

/// For text and attributes of HTML that is XML: control characters have no place in it at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
