//! `query_timeline`: the picture of a query, out of the steps in the text log.

use super::log::enough;
use crate::error;
use crate::log::{id_text, report};
use crate::shm::logs::{NO_PROCESS, QueryEntry, Step, StepEntry};
use parallel_replicas_core::task_state::Stage;
use parallel_replicas_core::timeline::{Caption, Event, Kind, html, lanes};
use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode, Uuid};

/// A page of HTML that needs nothing else: what each process of a query did when. Raises 02000 if the
/// text log has no tasks of the query that the user may see.
#[pg_extern(volatile, strict, parallel_safe)]
fn query_timeline(query_id: Uuid) -> String {
    if !crate::shm::is_preloaded() {
        error::not_preloaded();
    }
    let id = *query_id.as_bytes();
    let steps = enough(report::steps(Some(id)));
    if !steps.iter().any(|step| step.step == Step::Given) {
        error::raise(
            PgSqlErrorCode::ERRCODE_NO_DATA,
            format!("no tasks of query {} are known", id_text(&id)),
            "parallel_replicas.text_log has none that you may see.",
            "Set parallel_replicas.log_level to trace before the query, and \
             parallel_replicas.text_log_size large enough for its tasks.",
        );
    }
    let events: Vec<Event> = steps.iter().filter_map(event).collect();
    let entry = enough(report::queries())
        .into_iter()
        .rfind(|entry| entry.origin.query_id == id);
    html(&caption(&id, entry.as_ref()), &lanes(&events))
}

fn event(step: &StepEntry) -> Option<Event> {
    let kind = match step.step {
        Step::Connecting => Kind::Connecting {
            reused: step.amount == 1,
        },
        Step::Connected => Kind::Connected,
        Step::Announced => Kind::Announced {
            replay_wait_us: step.amount,
        },
        Step::Given => Kind::Given {
            stage: match step.stage {
                1 => Stage::Own,
                2 => Stage::StolenByHash,
                _ => Stage::StolenRest,
            },
        },
        Step::Done => Kind::Done,
        Step::NothingLeft => Kind::NothingLeft,
        Step::Delivered => Kind::Delivered,
        Step::Lost => Kind::Lost,
        Step::Refused | Step::Unavailable => Kind::LeftOut,
        Step::Stopped => Kind::Stopped,
        Step::Started | Step::Summary | Step::NotUsed | Step::Ended => return None,
    };
    (step.process != NO_PROCESS).then(|| Event {
        at_us: step.time,
        kind,
        fragment: step.fragment,
        process: step.process,
        replica: step.replica.get(),
        scan: step.scan,
        task: step.task,
        first_granule: step.first,
        granules: u32::try_from(step.count).unwrap_or(u32::MAX),
        detail: report::message(step),
    })
}

fn caption(id: &[u8; 16], entry: Option<&QueryEntry>) -> Caption {
    let mut caption = Caption {
        query_id: id_text(id),
        ..Caption::default()
    };
    let Some(entry) = entry else {
        return caption;
    };
    caption.text = entry.text.get();
    let milliseconds = (entry.end - entry.start) as f64 / 1000.0;
    caption.facts = [
        ("time", format!("{milliseconds:.1} ms")),
        (
            "replicas used",
            format!(
                "{} of {}",
                entry.totals.replicas_used, entry.totals.replicas_planned
            ),
        ),
        ("local workers", entry.totals.workers_launched.to_string()),
        (
            "granules",
            format!(
                "{} (own {}, stolen by hash {}, stolen rest {}, lost {})",
                entry.totals.selected,
                entry.totals.own,
                entry.totals.by_hash,
                entry.totals.rest,
                entry.totals.lost
            ),
        ),
        ("rows received", entry.totals.rows.to_string()),
        ("bytes received", entry.totals.bytes.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    caption
}
