//! The timeline of a query in a browser, by day and by night: whatever a process does has a colour of its
//! own, in its lane and in the legend, that stands out from what lies behind.

use parallel_replicas_core::timeline::{Caption, Lane, Span, SpanKind, html};
use parallel_replicas_tests::browser::{Scheme, Screenshot, contrast, screenshot};
use std::collections::BTreeSet;

/// For graphical objects, and for text: Web Content Accessibility Guidelines 2.1, 1.4.11 and 1.4.3.
const CONTRAST_MIN: f64 = 3.0;
const TEXT_CONTRAST_MIN: f64 = 4.5;

/// A lane for each thing that can be done: it is done twice, with an idle time between.
fn lanes() -> Vec<Lane> {
    let times = [(0, 330), (910, 1000)];
    let lane = |(process, kind)| Lane {
        fragment: 1,
        process,
        replica: "standby".to_owned(),
        spans: times
            .map(|(from_us, to_us)| Span {
                kind,
                from_us,
                to_us,
                text: String::new(),
            })
            .to_vec(),
    };
    (1..).zip(SpanKind::ALL).map(lane).collect()
}

/// The number in an attribute of a tag.
fn number(tag: &str, attribute: &str) -> f64 {
    let (_, value) = tag
        .split_once(&format!(" {attribute}=\""))
        .expect("the attribute");
    let (value, _) = value.split_once('"').expect("its end");
    value.parse().expect("a number")
}

/// Tags that begin so, one on each line of the page.
fn tags<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    page.match_indices(begin)
        .map(|(at, _)| page[at..].lines().next().unwrap_or_default())
        .collect()
}

struct Bar {
    left: f64,
    right: f64,
    middle: f64,
}

impl Bar {
    fn of(tag: &&str) -> Bar {
        let left = number(tag, "x");
        Bar {
            left,
            right: left + number(tag, "width"),
            middle: number(tag, "y") + number(tag, "height") / 2.0,
        }
    }

    fn colour(&self, shot: &Screenshot) -> [u8; 3] {
        at(shot, (self.left + self.right) / 2.0, self.middle)
    }
}

fn at(shot: &Screenshot, x: f64, y: f64) -> [u8; 3] {
    shot.at(x as usize, y as usize)
}

#[test]
fn every_colour_is_seen_by_day_and_by_night() {
    let page = html(&Caption::default(), &lanes());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let with_style = |name: &str, style: &str| {
        let file = folder.path().join(name);
        let page = page.replace("</head>", &format!("<style>{style}</style></head>"));
        std::fs::write(&file, page).expect("a file");
        file
    };
    // Points of the picture are the page's pixels.
    let picture = with_style(
        "picture.html",
        "body, body > svg { margin: 0; } body > :not(svg) { display: none !important; }",
    );
    let legend = with_style("legend.html", "body > svg { display: none; }");
    let bars: Vec<Bar> = tags(&page, "<rect class=\"bar ")
        .iter()
        .map(Bar::of)
        .collect();
    assert_eq!(bars.len(), 2 * SpanKind::ALL.len());
    let swatch = tags(&page, "<li><svg")[0];
    let swatch_pixels = (number(swatch, "width") * number(swatch, "height")) as usize;
    for scheme in [Scheme::Light, Scheme::Dark] {
        let picture = screenshot(&picture, scheme);
        let legend = screenshot(&legend, scheme);
        let (mut seen, mut behind) = (BTreeSet::new(), BTreeSet::new());
        for (kind, pair) in SpanKind::ALL.iter().zip(bars.chunks_exact(2)) {
            let colour = pair[0].colour(&picture);
            assert_eq!(colour, pair[1].colour(&picture), "{scheme:?} {kind:?}");
            let idle = (pair[0].right + pair[1].left) / 2.0;
            let background = at(&picture, idle, pair[0].middle);
            let contrast = contrast(colour, background);
            assert!(
                contrast >= CONTRAST_MIN,
                "{scheme:?} {kind:?}: {colour:?} on {background:?} has {contrast:.2}"
            );
            assert!(
                seen.insert(colour),
                "{scheme:?} {kind:?}: the colour of another"
            );
            behind.insert(background);
            let pixels = legend.count(colour);
            assert!(
                pixels >= swatch_pixels / 2,
                "{scheme:?} {kind:?}: {pixels} pixels in the legend"
            );
        }
        // Every other lane is shaded.
        assert_eq!(behind.len(), 2, "{scheme:?}: {behind:?}");
        assert!(behind.is_disjoint(&seen));
        words_can_be_read(&page, &picture, &behind, scheme);
    }
}

/// Letters are thin: somewhere they have their full colour.
fn words_can_be_read(page: &str, picture: &Screenshot, behind: &BTreeSet<[u8; 3]>, scheme: Scheme) {
    let words = tags(page, "<text ");
    assert!(words.len() > SpanKind::ALL.len());
    for word in words {
        let (x, y) = (number(word, "x") as usize, number(word, "y") as usize);
        let best = (x.saturating_sub(20)..x + 20)
            .flat_map(|x| (y.saturating_sub(8)..y).map(move |y| (x, y)))
            .map(|(x, y)| {
                let pixel = picture.at(x, y);
                let contrasts = behind.iter().map(|behind| contrast(pixel, *behind));
                contrasts.fold(f64::INFINITY, f64::min)
            })
            .fold(0.0, f64::max);
        assert!(best >= TEXT_CONTRAST_MIN, "{scheme:?}: {best:.2} of {word}");
    }
}
