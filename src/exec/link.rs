//! One link: a connection to a replica, which is one process there, and what it is doing.
//!
//! | phase | waits for | goes to |
//! |---|---|---|
//! | Connecting | the connection | Calling |
//! | Calling | the replica's CopyBoth answer to CALL serve() | Greeting |
//! | Greeting | Hello, which it answers with Begin | Waiting |
//! | Waiting | Announcement: the replica has replayed far enough | Working |
//! | Working | rows, TaskDone, Request, FragmentDone | Ending |
//! | Stopping | FragmentDone of a replica that was told to stop; rows are dropped | Ending |
//! | Ending | the end of the CALL | Closed |
//! | Closed | nothing | |
//!
//! Whether a working replica is alive is told by what it sends, and while it is silent by a probe (`watch`).
//!
//! From every phase a failure leads to Closed: the link is *unavailable* or *refused* before it has
//! announced itself, *lost* afterwards, and whatever it had not delivered goes back to the task
//! state. That includes an error in a row: doing the task again raises it here, in the query's own
//! words, if it is the query's fault, and does not if it was the replica's.

use super::dispatch::Shared;
use super::failure::{Failure, identity_difference, protocol, remote};
use super::granule_scan;
use super::held_rows::HeldRows;
use super::tasks;
use super::watch::Watch;
use crate::net::pool::{self, LeaseId};
use crate::net::{ConnectPoll, Connection, CopyBuffer, CopyRead, ResultRead, ResultStatus};
use crate::pg::wait::{Interest, now_micros};
use crate::secret;
use crate::shm::events::{self, Event};
use crate::shm::logs::Step;
use parallel_replicas_core::frame::{
    self, FragmentReport, Hello, Nonce, Refusal, ToCoordinator, ToReplica,
};
use parallel_replicas_core::task_state::Task;
use std::collections::VecDeque;
use std::ffi::CString;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Connecting,
    Calling,
    Greeting,
    Waiting,
    Working,
    Stopping,
    Ending,
    Closed,
}

/// How it ended, for EXPLAIN and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Running,
    Done,
    /// Nothing was left to do when it was ready.
    Unused,
    /// The query needed no more rows.
    Stopped,
    Unavailable(String),
    Refused(Refusal),
    Lost(String),
}

pub struct Link {
    /// Index of the replica among the participants.
    pub replica: u16,
    /// Number of the process for the task states.
    pub process: u16,
    pub phase: Phase,
    pub outcome: Outcome,
    lease: Option<LeaseId>,
    /// The connection comes from the session's pool.
    reused: bool,
    /// End of the time that the present phase may take; 0 while working.
    deadline: u64,
    /// While working: whether the process at the other end is alive.
    watch: Option<Watch>,
    last_served: u64,
    /// Random bytes that the replica's first frame must be computed from.
    challenge: Nonce,
    wants_write: bool,
    /// The connection was up at some time; the attempt to make it failed.
    pub was_connected: bool,
    pub connect_failed: bool,
    outstanding: VecDeque<(u32, Task)>,
    pub tasks_taken: u32,
    /// Rows whose end marker has not come.
    pending: HeldRows,
    /// Rows that may be passed on.
    pub ready: HeldRows,
    pub rows: u64,
    pub bytes: u64,
    pub replay_wait_us: u64,
    pub report: Option<Box<FragmentReport>>,
}

impl Link {
    /// A link over a connection that is still being made, or one from the pool.
    pub fn new(replica: u16, process: u16, lease: LeaseId, reused: bool, deadline: u64) -> Self {
        Link::with_lease(replica, process, Some(lease), reused, deadline)
    }

    fn with_lease(
        replica: u16,
        process: u16,
        lease: Option<LeaseId>,
        reused: bool,
        deadline: u64,
    ) -> Self {
        Link {
            replica,
            process,
            phase: Phase::Connecting,
            outcome: Outcome::Running,
            lease,
            reused,
            deadline,
            watch: None,
            last_served: now_micros(),
            challenge: secret::nonce(),
            wants_write: true,
            was_connected: reused,
            connect_failed: false,
            outstanding: VecDeque::new(),
            tasks_taken: 0,
            pending: HeldRows::default(),
            ready: HeldRows::default(),
            rows: 0,
            bytes: 0,
            replay_wait_us: 0,
            report: None,
        }
    }

    /// A link that could not even be started.
    pub fn unavailable(replica: u16, process: u16, why: String) -> Self {
        Link {
            phase: Phase::Closed,
            outcome: Outcome::Unavailable(why),
            ..Link::with_lease(replica, process, None, false, 0)
        }
    }

    /// May it still contribute rows?
    pub fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Stopping | Phase::Ending | Phase::Closed)
    }

    /// Holds nothing that anybody waits for, as long as no granule is unassigned.
    pub fn is_dispensable(&self) -> bool {
        self.tasks_taken == 0
    }

    /// Sockets to wait for.
    pub fn interests(&self) -> impl Iterator<Item = Interest> {
        let idle = self.phase == Phase::Closed || self.is_throttled();
        let own = self.lease.filter(|_| !idle).and_then(pool::get);
        let own = own.map(|connection| Interest {
            socket: connection.socket(),
            write: self.wants_write,
        });
        let watch = self.watch.as_ref().filter(|_| !idle);
        own.into_iter().chain(watch.and_then(Watch::interest))
    }

    /// Enough rows wait for the consumer: leave the rest in the socket.
    fn is_throttled(&self) -> bool {
        self.phase == Phase::Working && self.ready.total_bytes() > READY_BYTES_MAX
    }

    /// Time of the next deadline.
    pub fn deadline(&self) -> Option<u64> {
        if self.phase == Phase::Closed || self.is_throttled() {
            return None;
        }
        match &self.watch {
            Some(watch) => Some(watch.due()),
            None => Some(self.deadline),
        }
    }

    /// The time until now was spent on waiting, for this link among others.
    pub fn has_been_waited_for(&mut self) {
        self.last_served = now_micros();
    }

    /// Does whatever can be done without waiting. Answers whether anything happened.
    pub fn service(&mut self, shared: &mut Shared) -> bool {
        if self.phase == Phase::Closed {
            return false;
        }
        if self.is_throttled() {
            // It is not asked to speak.
            self.heard(shared);
            return false;
        }
        // Time in which this side was busy otherwise is not the replica's.
        let now = now_micros();
        let pause = now.saturating_sub(self.last_served);
        if pause > BUSY_US {
            self.deadline += pause;
            if let Some(watch) = &mut self.watch {
                watch.postpone(pause);
            }
        }
        self.last_served = now;
        let before = (
            self.phase,
            self.rows,
            self.tasks_taken,
            self.outstanding.len(),
        );
        let turn = match self.lease.and_then(pool::get) {
            Some(mut connection) => {
                let turn = self.turn(&mut connection, shared);
                let flushed = connection.flush();
                turn.and_then(|()| {
                    if self.phase != Phase::Connecting {
                        self.wants_write = !flushed?;
                    }
                    Ok(())
                })
            }
            None => Err(Failure::Infrastructure("connection was closed".to_owned())),
        };
        if let Err(failure) = turn {
            self.fail(failure, shared);
        } else if self.phase == Phase::Closed {
            self.release(shared);
        } else if let (Some(watch), Some(lease)) = (&mut self.watch, self.lease) {
            if let Err(why) = watch.look(lease, shared.pool_limits) {
                self.fail(Failure::Infrastructure(why), shared);
            }
        } else if now_micros() > self.deadline {
            let what = match self.phase {
                Phase::Connecting => {
                    self.connect_failed = true;
                    "connection timed out"
                }
                Phase::Waiting => "replica did not announce itself in time",
                _ => "replica was silent for too long",
            };
            self.fail(Failure::Infrastructure(what.to_owned()), shared);
        }
        before
            != (
                self.phase,
                self.rows,
                self.tasks_taken,
                self.outstanding.len(),
            )
    }

    /// Something came from the replica, or nothing is expected to.
    fn heard(&mut self, shared: &Shared) {
        match &mut self.watch {
            Some(watch) => watch.heard(),
            None => self.deadline = shared.silence_deadline(),
        }
    }

    /// The process is done, as far as its work matters: from now on an ordinary deadline holds.
    fn stop_watching(&mut self, shared: &Shared) {
        self.deadline = shared.silence_deadline();
        if let Some(watch) = self.watch.take() {
            watch.end(shared.pool_limits);
        }
    }

    fn turn(&mut self, connection: &mut Connection, shared: &mut Shared) -> Result<(), Failure> {
        if self.phase == Phase::Connecting {
            if self.reused {
                self.call(connection, shared)?;
            } else if connection.is_ready_for(self.wants_write) {
                match connection.poll_connect() {
                    ConnectPoll::NeedRead => self.wants_write = false,
                    ConnectPoll::NeedWrite => self.wants_write = true,
                    ConnectPoll::Ready => {
                        self.was_connected = true;
                        shared.step(self, Step::Connected, 0, 0, "");
                        self.call(connection, shared)?;
                    }
                    ConnectPoll::Failed(error) => {
                        self.connect_failed = true;
                        return Err(error.into());
                    }
                }
            }
            return Ok(());
        }
        connection.consume_input()?;
        loop {
            match self.phase {
                Phase::Calling => match connection.next_result() {
                    ResultRead::Nothing => return Ok(()),
                    ResultRead::Result(result) if result.status() == ResultStatus::CopyBoth => {
                        if self.outcome == Outcome::Unused {
                            self.tell_to_stop(connection, shared)?;
                        } else {
                            self.phase = Phase::Greeting;
                        }
                    }
                    ResultRead::Result(result) => return Err(remote(result.error())),
                    ResultRead::Done => return Err(protocol("CALL ended without an answer")),
                },
                Phase::Ending => match connection.next_result() {
                    ResultRead::Nothing => return Ok(()),
                    // The replica has not ended its direction yet.
                    ResultRead::Result(result) if result.is_copy() => {
                        match connection.copy_data() {
                            CopyRead::Nothing => return Ok(()),
                            CopyRead::Message(_) => {
                                return Err(protocol("replica sent a frame after its last"));
                            }
                            CopyRead::Ended => {}
                            CopyRead::Failed(error) => return Err(error.into()),
                        }
                    }
                    ResultRead::Result(result) => {
                        if let Some(error) = result.error() {
                            return Err(remote(Some(error)));
                        }
                    }
                    ResultRead::Done => {
                        self.phase = Phase::Closed;
                        return Ok(());
                    }
                },
                Phase::Closed | Phase::Connecting => return Ok(()),
                Phase::Greeting | Phase::Waiting | Phase::Working | Phase::Stopping => {
                    if self.is_throttled() {
                        return Ok(());
                    }
                    match connection.copy_data() {
                        CopyRead::Nothing => return Ok(()),
                        CopyRead::Message(message) => {
                            self.heard(shared);
                            self.message(message, connection, shared)?;
                        }
                        CopyRead::Ended => return Err(self.early_end(connection)),
                        CopyRead::Failed(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    fn call(&mut self, connection: &mut Connection, shared: &Shared) -> Result<(), Failure> {
        let challenge: String = self
            .challenge
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let call = CString::new(format!("CALL parallel_replicas.serve('\\x{challenge}')"))
            .map_err(|_| protocol("challenge cannot be sent"))?;
        connection.send_query(&call)?;
        self.phase = Phase::Calling;
        self.deadline = shared.silence_deadline();
        Ok(())
    }

    /// The replica's direction ended before its last frame: the result says why.
    fn early_end(&mut self, connection: &mut Connection) -> Failure {
        match connection.next_result() {
            ResultRead::Result(result) => remote(result.error()),
            ResultRead::Nothing | ResultRead::Done => protocol("replica ended the exchange early"),
        }
    }

    fn message(
        &mut self,
        message: CopyBuffer,
        connection: &mut Connection,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        if self.phase == Phase::Stopping {
            return self.message_after_stop(&message, connection);
        }
        if frame::is_rows(&message) {
            if self.phase != Phase::Working {
                return Err(protocol("rows came before the announcement"));
            }
            self.bytes += message.len() as u64;
            self.pending
                .push(message, shared.memory_limit, shared.context);
            return Ok(());
        }
        let frame: ToCoordinator = frame::decode(&message).map_err(|error| {
            Failure::Infrastructure(format!("replica sent a damaged frame: {error}"))
        })?;
        match (self.phase, frame) {
            (Phase::Greeting, ToCoordinator::Hello(hello)) => self.greet(hello, connection, shared),
            (Phase::Greeting | Phase::Waiting, ToCoordinator::Refused(refusal)) => {
                Err(Failure::Refused(refusal))
            }
            (Phase::Waiting, ToCoordinator::Announcement(announcement)) => {
                let started = now_micros();
                self.replay_wait_us = announcement.replay_wait_us;
                events::add(Event::ReplayWaitMicroseconds, announcement.replay_wait_us);
                shared.step(self, Step::Announced, 0, announcement.replay_wait_us, "");
                self.phase = Phase::Working;
                self.watch = Some(shared.watch());
                events::add(
                    Event::HandleAnnouncementMicroseconds,
                    now_micros() - started,
                );
                Ok(())
            }
            (Phase::Working, ToCoordinator::Request { scan }) => {
                self.give(scan, connection, shared)
            }
            (Phase::Working, ToCoordinator::TaskDone(report)) => {
                self.task_done(report.scan, report.id, connection, shared)
            }
            (Phase::Working, ToCoordinator::FragmentDone(report)) => {
                self.fragment_done(report, connection, shared)
            }
            (Phase::Greeting | Phase::Waiting | Phase::Working, ToCoordinator::Progress) => Ok(()),
            _ => Err(protocol("replica sent a frame out of turn")),
        }
    }

    /// Only the end of the exchange matters.
    fn message_after_stop(
        &mut self,
        message: &CopyBuffer,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        let ends = !frame::is_rows(message)
            && matches!(
                frame::decode(message),
                Ok(ToCoordinator::FragmentDone(_) | ToCoordinator::Refused(_))
            );
        if ends {
            self.phase = Phase::Ending;
            connection.put_copy_end()?;
        }
        Ok(())
    }

    fn tell_to_stop(
        &mut self,
        connection: &mut Connection,
        shared: &Shared,
    ) -> Result<(), Failure> {
        self.send(&ToReplica::Stop, connection)?;
        self.phase = Phase::Stopping;
        self.stop_watching(shared);
        Ok(())
    }

    /// Compares who the two servers are, and proves to the replica who this one is.
    fn greet(
        &mut self,
        hello: Hello,
        connection: &mut Connection,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let refuse = |reason: &str, detail: String| {
            Err(Failure::Refused(Refusal {
                reason: reason.to_owned(),
                detail,
            }))
        };
        if hello.instance_id == shared.instance_id {
            return refuse(
                "same_server",
                "the replica is this server itself".to_owned(),
            );
        }
        if !secret::verify_hello(&shared.secret, &self.challenge, &hello) {
            return refuse(
                "authentication",
                "the server does not know the secret of this cluster".to_owned(),
            );
        }
        if hello.identity != shared.identity {
            return refuse(
                "identity",
                identity_difference(&shared.identity, &hello.identity),
            );
        }
        let mac = secret::authenticate(&shared.secret, &hello.nonce, &shared.begin)
            .ok_or_else(|| protocol("secret cannot be used"))?;
        self.send(
            &ToReplica::Begin {
                mac,
                body: shared.begin.to_vec(),
            },
            connection,
        )?;
        self.phase = Phase::Waiting;
        self.deadline = shared.announcement_deadline();
        Ok(())
    }

    fn send(&mut self, frame: &ToReplica, connection: &mut Connection) -> Result<(), Failure> {
        let bytes = frame::encode(frame)
            .map_err(|error| Failure::Infrastructure(format!("frame cannot be sent: {error}")))?;
        match connection.put_copy_data(&bytes)? {
            true => Ok(()),
            false => Err(Failure::Infrastructure("replica does not read".to_owned())),
        }
    }

    /// Answers a process that has nothing to do in this scan, and gives it one task ahead.
    fn give(
        &mut self,
        scan: u32,
        connection: &mut Connection,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let Some(node) = shared.scans.get(scan as usize).copied() else {
            return Err(protocol("replica asked for an unknown scan"));
        };
        let started = now_micros();
        // SAFETY: the scan's state lives as long as the query.
        let memory = unsafe { granule_scan::task_memory(node) };
        if memory.is_null() {
            return Err(protocol("scan has no tasks"));
        }
        loop {
            let idle = self.outstanding.is_empty();
            let process = self.process;
            // SAFETY: laid out before the links were serviced for the first time.
            let task = unsafe {
                if idle {
                    tasks::request(memory, process)
                } else {
                    tasks::request_ahead(memory, process)
                }
            };
            let Some(task) = task else {
                if idle {
                    self.send(&ToReplica::Finish { scan }, connection)?;
                    shared.step(self, Step::NothingLeft, 0, 0, "");
                }
                break;
            };
            // SAFETY: as above.
            let (start_block, blocks) =
                unsafe { task.block_range((*memory).granule_blocks, (*memory).blocks) };
            self.send(
                &ToReplica::Task {
                    scan,
                    id: task.id,
                    start_block,
                    blocks,
                },
                connection,
            )?;
            shared.task_step(self, Step::Given, scan, &task);
            self.outstanding.push_back((scan, task));
            self.tasks_taken += 1;
            if !idle {
                break;
            }
        }
        events::add(Event::HandleRequestMicroseconds, now_micros() - started);
        Ok(())
    }

    fn task_done(
        &mut self,
        scan: u32,
        id: u32,
        connection: &mut Connection,
        shared: &Shared,
    ) -> Result<(), Failure> {
        match self.outstanding.pop_front() {
            Some((expected, task)) if expected == scan && task.id == id => {
                // SAFETY: the scan exists, since a task of it was given; its state outlives us.
                unsafe {
                    let memory = granule_scan::task_memory(shared.scans[scan as usize]);
                    let (process, streaming) = (self.process, shared.streaming);
                    tasks::with(memory, |state| {
                        state.worked(process, id, now_micros())?;
                        if streaming {
                            state.deliver(process, task)
                        } else {
                            Ok(())
                        }
                    });
                }
                shared.task_step(self, Step::Done, scan, &task);
                if shared.streaming {
                    self.ready
                        .append(&mut self.pending, shared.memory_limit, shared.context);
                }
            }
            _ => return Err(protocol("replica finished a task that it did not have")),
        }
        self.give(scan, connection, shared)
    }

    fn fragment_done(
        &mut self,
        report: Box<FragmentReport>,
        connection: &mut Connection,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        let unneeded = |scan: &u32| report.unneeded.contains(scan);
        if report.stopped || !self.outstanding.iter().all(|(scan, _)| unneeded(scan)) {
            return Err(protocol("replica ended with tasks undone"));
        }
        self.outstanding.clear();
        shared.unneeded.extend(
            report
                .unneeded
                .iter()
                .filter(|scan| (**scan as usize) < shared.scans.len()),
        );
        for node in &shared.scans {
            // SAFETY: the scan's state lives as long as the query.
            unsafe {
                let process = self.process;
                tasks::with(granule_scan::task_memory(*node), |state| {
                    state.deliver_all(process)
                });
            }
        }
        self.ready
            .append(&mut self.pending, shared.memory_limit, shared.context);
        self.rows = report.rows;
        events::add(Event::RowsReceived, report.rows);
        events::add(Event::BytesReceived, self.bytes);
        shared.step(self, Step::Delivered, report.rows, self.bytes, "");
        self.report = Some(report);
        self.outcome = Outcome::Done;
        self.phase = Phase::Ending;
        self.stop_watching(shared);
        connection.put_copy_end()?;
        Ok(())
    }

    fn fail(&mut self, failure: Failure, shared: &mut Shared) {
        let announced = self.phase == Phase::Working;
        if matches!(self.phase, Phase::Stopping | Phase::Ending) {
            // All was delivered; only the connection is gone.
            self.close(shared);
            return;
        }
        self.outcome = match failure {
            Failure::Refused(refusal) => {
                events::add(Event::RefusedCount, 1);
                if refusal.reason == "authentication" {
                    secret::forget();
                }
                Outcome::Refused(refusal)
            }
            Failure::Infrastructure(why) if announced => {
                events::add(Event::LostCount, 1);
                Outcome::Lost(why)
            }
            Failure::Infrastructure(why) => Outcome::Unavailable(why),
        };
        self.log(shared);
        self.close(shared);
    }

    /// Tells the server's log what became of the link.
    fn log(&self, shared: &Shared) {
        let name = shared.replica_name(self.replica);
        let query = shared.query_label();
        match &self.outcome {
            Outcome::Lost(why) => pgrx::log!("{query}: replica \"{name}\" was lost: {why}"),
            Outcome::Refused(refusal) => pgrx::log!(
                "{query}: replica \"{name}\" refused to take part: {} ({})",
                refusal.reason,
                refusal.detail
            ),
            Outcome::Unavailable(why) => {
                pgrx::log!("{query}: replica \"{name}\" was unavailable: {why}");
            }
            Outcome::Running | Outcome::Done | Outcome::Unused | Outcome::Stopped => {}
        }
    }

    /// Gives back whatever was not delivered and lets go of the connection.
    fn close(&mut self, shared: &mut Shared) {
        if self.is_live() {
            let counted = matches!(self.outcome, Outcome::Lost(_));
            let mut granules = 0;
            for node in &shared.scans {
                // SAFETY: the scan's state lives as long as the query.
                let memory = unsafe { granule_scan::task_memory(*node) };
                if !memory.is_null() {
                    let process = self.process;
                    // SAFETY: as above.
                    let lost = unsafe { tasks::with(memory, |state| state.lose(process)) };
                    granules += u64::from(lost);
                    if counted {
                        events::add(Event::RetriedMarks, u64::from(lost));
                    }
                }
            }
            self.pending.clear();
            self.outstanding.clear();
            shared.ending_step(self, granules);
        }
        self.phase = Phase::Closed;
        self.stop_watching(shared);
        if let Some(lease) = self.lease.take() {
            pool::release(lease, false, shared.pool_limits);
        }
    }

    /// The CALL has ended in order: the connection can serve again.
    fn release(&mut self, shared: &Shared) {
        if let Some(lease) = self.lease.take() {
            pool::release(lease, true, shared.pool_limits);
        }
    }

    /// Nothing more is wanted from it. A connection that is up is told so, and `service` sees it to
    /// its end; one in the making is left to the session's next query.
    pub fn stop(&mut self, shared: &mut Shared) {
        if !self.is_live() {
            return;
        }
        let served = self.tasks_taken > 0;
        self.outcome = if served {
            Outcome::Stopped
        } else {
            Outcome::Unused
        };
        shared.step(self, Step::Stopped, 0, 0, "");
        if self.phase == Phase::Connecting {
            self.phase = Phase::Closed;
            self.release(shared);
            return;
        }
        // Before the replica has answered the CALL nothing can be said; `service` does it then.
        let told = self.phase == Phase::Calling
            || self
                .lease
                .and_then(pool::get)
                .is_some_and(|mut connection| {
                    self.tell_to_stop(&mut connection, shared).is_ok() && connection.flush().is_ok()
                });
        self.pending.clear();
        self.outstanding.clear();
        if !told {
            self.close(shared);
        }
    }
}

impl Link {
    /// Lets go of the connection, whatever state it is in, and of all rows.
    pub fn abandon(&mut self, shared: &mut Shared) {
        if self.phase != Phase::Closed {
            self.close(shared);
        }
        self.ready.clear();
        self.pending.clear();
    }
}

/// Bytes of rows that wait for the consumer, per link, before reading stops.
const READY_BYTES_MAX: usize = 1 << 20;

/// A pause between two turns that is longer than this was this side's doing.
const BUSY_US: u64 = 20_000;
