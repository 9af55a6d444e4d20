//! The picture of a query: spans of time out of steps, and a page that any text leaves whole.

use parallel_replicas_core::task_state::Stage;
use parallel_replicas_core::timeline::{Caption, Event, Kind, Lane, SpanKind, html, lanes};

fn event(at_us: i64, process: u32, kind: Kind) -> Event {
    Event {
        at_us,
        kind,
        fragment: 1,
        process,
        replica: if process >= 10 {
            "standby".to_owned()
        } else {
            String::new()
        },
        scan: 0,
        task: 0,
        first_granule: 0,
        granules: 0,
        detail: String::new(),
    }
}

fn task(at_us: i64, process: u32, kind: Kind, task: u32, first: u32, granules: u32) -> Event {
    Event {
        task,
        first_granule: first,
        granules,
        ..event(at_us, process, kind)
    }
}

const OWN: Kind = Kind::Given { stage: Stage::Own };
const HASH: Kind = Kind::Given {
    stage: Stage::StolenByHash,
};
const REST: Kind = Kind::Given {
    stage: Stage::StolenRest,
};

fn spans(lane: &Lane) -> Vec<(SpanKind, i64, i64)> {
    lane.spans
        .iter()
        .map(|span| (span.kind, span.from_us, span.to_us))
        .collect()
}

#[test]
fn a_link_connects_waits_works_and_finishes() {
    let events = [
        event(0, 10, Kind::Connecting { reused: false }),
        event(10, 10, Kind::Connected),
        event(100, 10, Kind::Announced { replay_wait_us: 60 }),
        task(110, 10, OWN, 1, 0, 4),
        // Given while the first is in work: it begins when that one is done.
        task(111, 10, HASH, 2, 4, 4),
        task(200, 10, Kind::Done, 1, 0, 4),
        task(300, 10, Kind::Done, 2, 4, 4),
        event(301, 10, Kind::NothingLeft),
        event(340, 10, Kind::Delivered),
    ];
    let lanes = lanes(&events);
    assert_eq!(lanes.len(), 1);
    assert_eq!(
        spans(&lanes[0]),
        [
            (SpanKind::Connecting, 0, 10),
            (SpanKind::Starting, 10, 40),
            (SpanKind::ReplayWait, 40, 100),
            (SpanKind::Own, 110, 200),
            (SpanKind::StolenByHash, 200, 300),
            (SpanKind::Finishing, 301, 340),
        ]
    );
}

#[test]
fn a_link_tells_what_it_gave_back() {
    let events = [
        task(0, 10, OWN, 1, 0, 8),
        task(1, 10, OWN, 2, 8, 8),
        // The one that had not begun, then a part of the one in work.
        task(40, 10, Kind::Done, 2, 8, 0),
        task(50, 10, Kind::Done, 1, 0, 5),
        task(60, 10, HASH, 3, 16, 1),
        task(70, 10, Kind::Done, 3, 16, 1),
    ];
    let lanes = lanes(&events);
    assert_eq!(
        spans(&lanes[0]),
        [
            (SpanKind::GivenBack, 0, 50),
            (SpanKind::StolenByHash, 60, 70)
        ]
    );
    assert!(lanes[0].spans[0].text.ends_with(", 3 given back"));
}

#[test]
fn a_local_process_has_done_a_task_when_it_asks_for_the_next() {
    let events = [
        task(5, 1, OWN, 1, 0, 2),
        task(20, 1, REST, 2, 2, 2),
        event(50, 1, Kind::NothingLeft),
    ];
    assert_eq!(
        spans(&lanes(&events)[0]),
        [(SpanKind::Own, 5, 20), (SpanKind::StolenRest, 20, 50)]
    );
}

#[test]
fn what_is_lost_and_what_is_given_back_are_told_apart() {
    let events = [
        task(0, 10, OWN, 1, 0, 8),
        task(0, 1, OWN, 2, 8, 8),
        event(50, 10, Kind::Lost),
        // A part of what was lost, and a part of what its process gave back.
        task(60, 2, REST, 3, 4, 4),
        task(70, 2, REST, 4, 12, 4),
        event(90, 1, Kind::NothingLeft),
        event(95, 2, Kind::NothingLeft),
    ];
    let lanes = lanes(&events);
    assert_eq!(spans(&lanes[0]), [(SpanKind::GivenBack, 0, 90)]);
    assert!(lanes[0].spans[0].text.ends_with(", 4 given back"));
    assert_eq!(
        spans(&lanes[1]),
        [
            (SpanKind::StolenRest, 60, 70),
            (SpanKind::StolenRest, 70, 95)
        ]
    );
    assert_eq!(spans(&lanes[2]), [(SpanKind::Lost, 0, 50)]);
    assert_eq!(lanes[2].replica, "standby");
}

#[test]
fn a_page_has_its_lanes_and_survives_any_text() {
    let events = [
        task(0, 0, OWN, 1, 0, 8),
        event(2_000_000, 0, Kind::NothingLeft),
    ];
    let caption = Caption {
        query_id: "an id".to_owned(),
        text: "SELECT '<script>alert(1)</script>' & \"x\" \u{1} \u{ffff}".to_owned(),
        facts: vec![("rows".to_owned(), "<1>".to_owned())],
    };
    let page = html(&caption, &lanes(&events));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&#39; &amp; &quot;x&quot;"));
    assert!(!page.contains("<script") && !page.contains('\u{1}') && !page.contains('\u{ffff}'));
    assert!(page.contains(">leader</text>"));
    assert_eq!(page.matches("class=\"bar own\"").count(), 1);
    assert!(page.contains(">2.0 s</text>") || page.contains(">2 s</text>"));
    // Nothing is fetched from anywhere.
    let links = page.matches("http").count();
    assert_eq!(links, page.matches("xmlns=\"http://www.w3.org/").count());
}

#[test]
fn nothing_at_all_can_be_drawn() {
    assert!(html(&Caption::default(), &[]).ends_with("</html>\n"));
}
