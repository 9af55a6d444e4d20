//! What a link is doing, what may happen to it, and what is then to be done.
//!
//! | phase | waits for | for how long |
//! |---|---|---|
//! | Connecting | the connection | connect timeout |
//! | Calling | the replica's CopyBoth answer to CALL serve() | silence |
//! | Leaving | the same, although nothing is wanted any more | silence |
//! | Greeting | Hello, which is answered with Begin | silence |
//! | Waiting | Announcement: the replica has replayed far enough | announcement |
//! | Working | rows, TaskDone, Request, FragmentDone | watched |
//! | Stopping | FragmentDone of a replica that was told to stop; rows are dropped | silence |
//! | Ending | the end of the CALL | silence |
//! | Closed | nothing | for ever |
//!
//! Each event that may come in a phase, what it leads to, and what is to be done. Any other is a
//! frame out of turn, which fails the link.
//!
//! | phase | event | next | action | fate |
//! |---|---|---|---|---|
//! | Connecting | Connected | Calling | Call | |
//! | Connecting | Stop | Closed | Keep | Unused |
//! | Connecting | Failed | Closed | Close | Unavailable |
//! | Calling | Called | Greeting | Nothing | |
//! | Calling | Stop | Leaving | Nothing | Unused |
//! | Calling | Failed | Closed | Close | Unavailable |
//! | Leaving | Called | Stopping | SendStop | |
//! | Leaving | Stop | Leaving | Nothing | |
//! | Leaving | Failed | Closed | Close | |
//! | Greeting | Greeted | Waiting | SendBegin | |
//! | Greeting | Refused | Closed | Close | Refused |
//! | Greeting | Progress | Greeting | Nothing | |
//! | Greeting | Stop | Stopping | SendStop | Unused |
//! | Greeting | Failed | Closed | Close | Unavailable |
//! | Waiting | Announced | Working | Watch | |
//! | Waiting | Refused | Closed | Close | Refused |
//! | Waiting | Progress | Waiting | Nothing | |
//! | Waiting | Stop | Stopping | SendStop | Unused |
//! | Waiting | Failed | Closed | Close | Unavailable |
//! | Working | Rows | Working | HoldRows | |
//! | Working | Asked | Working | GiveTask | |
//! | Working | TaskDone | Working | PassTaskOn | |
//! | Working | GaveBack | Working | TakeBack | |
//! | Working | FragmentDone | Ending | PassAllOn | Done |
//! | Working | Progress | Working | Nothing | |
//! | Working | Stop | Stopping | SendStop | Stopped |
//! | Working | Failed | Closed | Close | Lost |
//! | Stopping | Greeted | Stopping | Nothing | |
//! | Stopping | Announced | Stopping | Nothing | |
//! | Stopping | Rows | Stopping | Nothing | |
//! | Stopping | Asked | Stopping | Nothing | |
//! | Stopping | TaskDone | Stopping | Nothing | |
//! | Stopping | GaveBack | Stopping | Nothing | |
//! | Stopping | Progress | Stopping | Nothing | |
//! | Stopping | FragmentDone | Ending | HangUp | |
//! | Stopping | Refused | Ending | HangUp | |
//! | Stopping | Stop | Stopping | Nothing | |
//! | Stopping | Failed | Closed | Close | |
//! | Ending | Ended | Closed | Keep | |
//! | Ending | Stop | Ending | Nothing | |
//! | Ending | Failed | Closed | Close | |
//! | Closed | Stop | Closed | Nothing | |
//! | Closed | Failed | Closed | Nothing | |
//!
//! A link that fails while Working had not delivered what it holds: Close gives it back to the task
//! state. That includes an error in a row: doing the task again raises it on the coordinator, in the
//! query's own words, if it is the query's fault, and does not if it was the replica's.

use crate::frame::ToCoordinator;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Connecting,
    Calling,
    Leaving,
    Greeting,
    Waiting,
    Working,
    Stopping,
    Ending,
    Closed,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection is up.
    Connected,
    /// The replica has answered the CALL with CopyBoth.
    Called,
    /// Hello of a server that may be shown the plan.
    Greeted,
    Announced,
    Rows,
    Asked,
    TaskDone,
    /// A task that was given will not be begun.
    GaveBack,
    FragmentDone,
    Progress,
    /// The replica does not take part, or must not.
    Refused,
    /// The CALL has ended in order.
    Ended,
    /// Nothing more is wanted from the replica.
    Stop,
    /// Connection, protocol, an error there, silence.
    Failed,
}

impl Event {
    /// The event that a frame is. Whether a Hello is a greeting is for the caller to judge first.
    pub fn of(frame: &ToCoordinator) -> Event {
        match frame {
            ToCoordinator::Hello(_) => Event::Greeted,
            ToCoordinator::Refused(_) => Event::Refused,
            ToCoordinator::Announcement(_) => Event::Announced,
            ToCoordinator::Request { .. } => Event::Asked,
            ToCoordinator::TaskDone(_) => Event::TaskDone,
            ToCoordinator::GaveBack { .. } => Event::GaveBack,
            ToCoordinator::Progress | ToCoordinator::Used { .. } => Event::Progress,
            ToCoordinator::FragmentDone(_) => Event::FragmentDone,
        }
    }
}

/// What has to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Send the CALL.
    Call,
    SendBegin,
    /// The replica works: see that it stays alive.
    Watch,
    /// Keep the rows until the end of their task or fragment.
    HoldRows,
    /// Answer with a task, or that there is none.
    GiveTask,
    /// The task is done; the rows of a streaming fragment may be passed on.
    PassTaskOn,
    /// The task is for others.
    TakeBack,
    /// Everything is done: pass all rows on, end this side's direction.
    PassAllOn,
    /// Forget all rows and tell the replica to stop.
    SendStop,
    /// End this side's direction.
    HangUp,
    /// The connection can be used again.
    Keep,
    /// Close the connection; what was not delivered goes back to the task state.
    Close,
}

/// How a link ended, for EXPLAIN and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Running,
    Done,
    /// It was not needed.
    Unused,
    /// The query needed no more rows.
    Stopped,
    Unavailable,
    Refused,
    Lost,
}

/// For how long the present phase may last without a word of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Connect,
    Silence,
    Announcement,
    /// By [`super::Liveness`].
    Watched,
    ForEver,
}

/// An event that must not come in this phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replica sent a frame out of turn")]
pub struct OutOfTurn;

/// The state of one link.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    phase: Phase,
    fate: Fate,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            phase: Phase::Connecting,
            fate: Fate::Running,
        }
    }
}

impl Machine {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// May it still contribute rows?
    pub fn is_live(&self) -> bool {
        use Phase::*;
        matches!(
            self.phase,
            Connecting | Calling | Greeting | Waiting | Working
        )
    }

    pub fn patience(&self) -> Patience {
        match self.phase {
            Phase::Connecting => Patience::Connect,
            Phase::Waiting => Patience::Announcement,
            Phase::Working => Patience::Watched,
            Phase::Closed => Patience::ForEver,
            Phase::Calling | Phase::Leaving | Phase::Greeting | Phase::Stopping | Phase::Ending => {
                Patience::Silence
            }
        }
    }

    /// Moves on. After an error, [`Event::Failed`] has to follow.
    pub fn on(&mut self, event: Event) -> Result<Action, OutOfTurn> {
        use {Action as A, Event as E, Fate as F, Phase as P};
        let (next, action, fate) = match (self.phase, event) {
            (P::Connecting, E::Connected) => (P::Calling, A::Call, None),
            (P::Connecting, E::Stop) => (P::Closed, A::Keep, Some(F::Unused)),
            (P::Calling, E::Called) => (P::Greeting, A::Nothing, None),
            (P::Calling, E::Stop) => (P::Leaving, A::Nothing, Some(F::Unused)),
            (P::Leaving, E::Called) => (P::Stopping, A::SendStop, None),
            (P::Greeting, E::Greeted) => (P::Waiting, A::SendBegin, None),
            (P::Waiting, E::Announced) => (P::Working, A::Watch, None),
            (P::Greeting | P::Waiting, E::Refused) => (P::Closed, A::Close, Some(F::Refused)),
            (P::Greeting | P::Waiting, E::Stop) => (P::Stopping, A::SendStop, Some(F::Unused)),
            (P::Connecting | P::Calling | P::Greeting | P::Waiting, E::Failed) => {
                (P::Closed, A::Close, Some(F::Unavailable))
            }

            (P::Working, E::Rows) => (P::Working, A::HoldRows, None),
            (P::Working, E::Asked) => (P::Working, A::GiveTask, None),
            (P::Working, E::TaskDone) => (P::Working, A::PassTaskOn, None),
            (P::Working, E::GaveBack) => (P::Working, A::TakeBack, None),
            (P::Working, E::FragmentDone) => (P::Ending, A::PassAllOn, Some(F::Done)),
            (P::Working, E::Stop) => (P::Stopping, A::SendStop, Some(F::Stopped)),
            (P::Working, E::Failed) => (P::Closed, A::Close, Some(F::Lost)),
            (phase @ (P::Greeting | P::Waiting | P::Working), E::Progress) => {
                (phase, A::Nothing, None)
            }

            (P::Stopping, E::FragmentDone | E::Refused) => (P::Ending, A::HangUp, None),
            (
                P::Stopping,
                E::Greeted
                | E::Announced
                | E::Rows
                | E::Asked
                | E::TaskDone
                | E::GaveBack
                | E::Progress,
            ) => (P::Stopping, A::Nothing, None),
            (P::Ending, E::Ended) => (P::Closed, A::Keep, None),
            (P::Leaving | P::Stopping | P::Ending, E::Failed) => (P::Closed, A::Close, None),
            (phase @ (P::Leaving | P::Stopping | P::Ending | P::Closed), E::Stop) => {
                (phase, A::Nothing, None)
            }
            (P::Closed, E::Failed) => (P::Closed, A::Nothing, None),
            _ => return Err(OutOfTurn),
        };
        self.phase = next;
        if let Some(fate) = fate {
            self.fate = fate;
        }
        Ok(action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 9] = [
        Phase::Connecting,
        Phase::Calling,
        Phase::Leaving,
        Phase::Greeting,
        Phase::Waiting,
        Phase::Working,
        Phase::Stopping,
        Phase::Ending,
        Phase::Closed,
    ];
    const EVENTS: [Event; 14] = [
        Event::Connected,
        Event::Called,
        Event::Greeted,
        Event::Announced,
        Event::Rows,
        Event::Asked,
        Event::TaskDone,
        Event::GaveBack,
        Event::FragmentDone,
        Event::Progress,
        Event::Refused,
        Event::Ended,
        Event::Stop,
        Event::Failed,
    ];

    fn name(value: impl std::fmt::Debug) -> String {
        format!("{value:?}")
    }

    /// Rows of this file's tables with so many columns, without heads and rules.
    fn documented(columns: usize) -> Vec<Vec<String>> {
        include_str!("machine.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! |")?.strip_suffix('|'))
            .map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect())
            .filter(|row: &Vec<String>| row.len() == columns)
            .filter(|row| row[0] != "phase" && !row[0].starts_with("---"))
            .collect()
    }

    #[test]
    fn the_table_says_what_the_code_does() {
        let mut coded = Vec::new();
        for phase in PHASES {
            for event in EVENTS {
                let fate = Fate::Running;
                let mut machine = Machine { phase, fate };
                let Ok(action) = machine.on(event) else {
                    assert_eq!((machine.phase, machine.fate), (phase, fate));
                    continue;
                };
                let fate = match machine.fate {
                    Fate::Running => String::new(),
                    fate => name(fate),
                };
                coded.push(vec![
                    name(phase),
                    name(event),
                    name(machine.phase),
                    name(action),
                    fate,
                ]);
            }
        }
        let mut documented = documented(5);
        coded.sort();
        documented.sort();
        assert_eq!(coded, documented);
    }

    #[test]
    fn the_table_says_how_long_each_phase_may_last() {
        let documented = documented(3);
        assert_eq!(documented.len(), PHASES.len());
        for (row, phase) in documented.iter().zip(PHASES) {
            let fate = Fate::Running;
            let patience = match (Machine { phase, fate }).patience() {
                Patience::Connect => "connect timeout",
                Patience::Silence => "silence",
                Patience::Announcement => "announcement",
                Patience::Watched => "watched",
                Patience::ForEver => "for ever",
            };
            assert_eq!(row, &[name(phase), row[1].clone(), patience.to_owned()]);
        }
    }

    /// Whatever happens, a link that has failed or was told to stop closes, and stays closed.
    #[test]
    fn every_phase_can_be_left() {
        for phase in PHASES {
            let mut machine = Machine {
                phase,
                fate: Fate::Running,
            };
            machine.on(Event::Stop).unwrap();
            assert!(!machine.is_live());
            machine.on(Event::Failed).unwrap();
            assert_eq!(machine.phase(), Phase::Closed);
            for event in EVENTS {
                let _ = machine.on(event);
                assert_eq!(machine.phase(), Phase::Closed);
            }
        }
    }
}
