//! From steps to spans of time.

use super::{Event, Kind};
use crate::task_state::Stage;
use std::collections::{BTreeMap, BTreeSet};

/// What a process did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpanKind {
    Connecting,
    /// Greeting, guards, start of the fragment.
    Starting,
    ReplayWait,
    Own,
    StolenByHash,
    StolenRest,
    /// A task of which others got a part.
    GivenBack,
    /// A task, or an attempt to take part, that came to nothing.
    Lost,
    /// Sorting, hashing and sending after the last task.
    Finishing,
}

impl SpanKind {
    pub const ALL: [SpanKind; 9] = [
        SpanKind::Connecting,
        SpanKind::Starting,
        SpanKind::ReplayWait,
        SpanKind::Own,
        SpanKind::StolenByHash,
        SpanKind::StolenRest,
        SpanKind::GivenBack,
        SpanKind::Lost,
        SpanKind::Finishing,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub kind: SpanKind,
    pub from_us: i64,
    pub to_us: i64,
    /// For people.
    pub text: String,
}

/// All that one process did in one execution of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub fragment: u32,
    pub process: u32,
    pub replica: String,
    pub spans: Vec<Span>,
}

/// A task that a process holds.
struct Held<'a> {
    event: &'a Event,
    stage: Stage,
}

/// A lane that is being filled.
struct Filling<'a> {
    lane: Lane,
    /// Start of the phase before the first task.
    phase: Option<(SpanKind, i64)>,
    held: Vec<Held<'a>>,
    /// End of the last span.
    busy_until: i64,
    finishing: Option<i64>,
}

/// The lanes in order: by fragment, this server first, then by process.
pub fn lanes(events: &[Event]) -> Vec<Lane> {
    let given_back = given_back(events);
    let mut filling: BTreeMap<(u32, bool, u32), Filling<'_>> = BTreeMap::new();
    let mut end = i64::MIN;
    for event in events {
        end = end.max(event.at_us);
        let key = (event.fragment, !event.replica.is_empty(), event.process);
        filling
            .entry(key)
            .or_insert_with(|| Filling {
                lane: Lane {
                    fragment: event.fragment,
                    process: event.process,
                    replica: event.replica.clone(),
                    spans: Vec::new(),
                },
                phase: None,
                held: Vec::new(),
                busy_until: i64::MIN,
                finishing: None,
            })
            .take(event, &given_back);
    }
    filling
        .into_values()
        .map(|mut lane| {
            // What is still open goes on to the end of what is known.
            lane.end_task(end, &given_back);
            lane.lane
        })
        .collect()
}

/// Tasks of this server's processes of which a part went to somebody else meanwhile, by (fragment, scan,
/// task): a later task begins inside of them, and nothing was lost.
fn given_back(events: &[Event]) -> BTreeMap<(u32, u32, u32), u32> {
    let lost: BTreeSet<(u32, u32)> = events
        .iter()
        .filter(|event| matches!(event.kind, Kind::Lost | Kind::Stopped))
        .map(|event| (event.fragment, event.process))
        .collect();
    // By (fragment, scan, first granule).
    let mut given: BTreeMap<(u32, u32, u32), &Event> = BTreeMap::new();
    let mut parts = BTreeMap::new();
    for event in events {
        if !matches!(event.kind, Kind::Given { .. }) {
            continue;
        }
        let key = (event.fragment, event.scan, event.first_granule);
        let before = given.range(..key).next_back();
        if let Some((&(fragment, scan, first), holder)) = before
            && (fragment, scan) == (event.fragment, event.scan)
            && first + holder.granules > event.first_granule
            && !lost.contains(&(holder.fragment, holder.process))
        {
            let part = first + holder.granules - event.first_granule;
            parts.insert((fragment, scan, holder.task), part);
        }
        given.insert(key, event);
    }
    parts
}

impl<'a> Filling<'a> {
    fn take(&mut self, event: &'a Event, given_back: &BTreeMap<(u32, u32, u32), u32>) {
        let at = event.at_us;
        match event.kind {
            Kind::Connecting { reused: false } => self.phase = Some((SpanKind::Connecting, at)),
            Kind::Connecting { reused: true } => self.phase = Some((SpanKind::Starting, at)),
            Kind::Connected => {
                self.end_phase(at, "connected");
                self.phase = Some((SpanKind::Starting, at));
            }
            Kind::Announced { replay_wait_us } => {
                let start = self.phase.map_or(at, |(_, since)| since);
                let waited = i64::try_from(replay_wait_us).unwrap_or(i64::MAX);
                let ready = at.saturating_sub(waited).max(start);
                self.end_phase(ready, "checked and started");
                if ready < at {
                    self.push(
                        SpanKind::ReplayWait,
                        ready,
                        at,
                        "waited for replay".to_owned(),
                    );
                }
                self.busy_until = at;
            }
            Kind::Given { stage } => {
                // A process of this server asks when it has done its last task; a link says so.
                if self.lane.replica.is_empty() {
                    self.end_task(at, given_back);
                }
                self.held.push(Held { event, stage });
            }
            Kind::Done => {
                let is_it = |held: &Held<'_>| held.event.task == event.task;
                if let Some(position) = self.held.iter().position(is_it) {
                    let held = self.held.remove(position);
                    // One that was given back before it had begun took no time.
                    if event.granules > 0 {
                        let part = held.event.granules.saturating_sub(event.granules);
                        self.worked(&held, at, part);
                    }
                }
            }
            Kind::NothingLeft => {
                self.end_task(at, given_back);
                self.finishing = Some(at);
            }
            Kind::Delivered => {
                if let Some(since) = self.finishing.take() {
                    self.push(SpanKind::Finishing, since, at, event.detail.clone());
                }
            }
            Kind::Lost | Kind::LeftOut => self.come_to_nothing(at, &event.detail),
            Kind::Stopped => {
                self.phase = None;
                self.held.clear();
                self.finishing = None;
            }
        }
    }

    fn push(&mut self, kind: SpanKind, from_us: i64, to_us: i64, text: String) {
        self.lane.spans.push(Span {
            kind,
            from_us,
            to_us: to_us.max(from_us),
            text,
        });
        self.busy_until = self.busy_until.max(to_us);
    }

    fn end_phase(&mut self, at: i64, text: &str) {
        if let Some((kind, since)) = self.phase.take() {
            self.push(kind, since, at, text.to_owned());
        }
    }

    /// The oldest task in hand has been worked through.
    fn end_task(&mut self, at: i64, given_back: &BTreeMap<(u32, u32, u32), u32>) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.remove(0);
        let key = (held.event.fragment, held.event.scan, held.event.task);
        self.worked(&held, at, given_back.get(&key).copied().unwrap_or(0));
    }

    /// `part` of its granules went to others.
    fn worked(&mut self, held: &Held<'_>, at: i64, part: u32) {
        let event = held.event;
        let mut kind = match held.stage {
            Stage::Own => SpanKind::Own,
            Stage::StolenByHash => SpanKind::StolenByHash,
            Stage::StolenRest => SpanKind::StolenRest,
        };
        let mut text = format!("task {}: {}", event.task, granules(event));
        if part > 0 {
            kind = SpanKind::GivenBack;
            text.push_str(&format!(", {part} given back"));
        }
        let from = event.at_us.max(self.busy_until);
        self.push(kind, from, at, text);
    }

    fn come_to_nothing(&mut self, at: i64, why: &str) {
        let since = match (self.held.first(), self.phase, self.finishing) {
            (Some(held), _, _) => held.event.at_us.max(self.busy_until),
            (None, Some((_, since)), _) => since,
            (None, None, Some(since)) => since,
            (None, None, None) => at,
        };
        self.held.clear();
        self.phase = None;
        self.finishing = None;
        self.push(SpanKind::Lost, since, at, why.to_owned());
    }
}

fn granules(event: &Event) -> String {
    let last = event
        .first_granule
        .saturating_add(event.granules.saturating_sub(1));
    format!(
        "{} granules, {} to {last} of scan {}",
        event.granules, event.first_granule, event.scan
    )
}
