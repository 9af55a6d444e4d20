//! One link: a connection to a replica, which is one process there. What it may do when is the
//! core's matter (`core::link`); here it is done.
//!
//! Whether a working replica is alive is told by what it sends, and while it is silent by a probe
//! (`watch`).

mod work;

use super::dispatch::Shared;
use super::failure::{Failure, early_end, identity_difference, protocol, refused, remote};
use super::granule_scan;
use super::held_rows::{HeldRows, LEAST_TUPLE_BYTES};
use super::tasks;
use super::watch::Watch;
use crate::net::pool::{self, LeaseId};
use crate::net::{ConnectPoll, Connection, CopyBuffer, CopyRead, ResultRead, ResultStatus};
use crate::pg::wait::{Interest, Ready, now_micros};
use crate::queue;
use crate::secret;
use crate::shm::events::{self, Event as Counter};
use crate::shm::logs::Step;
use parallel_replicas_core::frame::{self, FragmentReport, Hello, Nonce, ToCoordinator, ToReplica};
use parallel_replicas_core::link::{Action, Event, Fate, GivenTasks, Machine, Patience, Phase};
use std::ffi::CString;

pub struct Link {
    /// Index of the replica among the participants.
    pub replica: u16,
    /// Number of the process for the task states.
    pub process: u16,
    machine: Machine,
    /// Why it did not take part, or was lost.
    pub trouble: Option<String>,
    lease: Option<LeaseId>,
    /// The connection comes from the session's pool.
    reused: bool,
    /// End of the time that the present phase may take, unless it is watched.
    deadline: u64,
    /// While working: is the process at the other end alive?
    watch: Option<Watch>,
    last_served: u64,
    /// Random bytes that the replica's first frame must be computed from.
    challenge: Nonce,
    wants_write: bool,
    /// There may be something to read.
    readable: bool,
    /// The connection was up at some time; the attempt to make it failed.
    pub was_connected: bool,
    pub connect_failed: bool,
    /// It was lost by an error that is the query's fault.
    pub met_error_of_query: bool,
    /// It refused because it had not replayed far enough.
    pub was_behind: bool,
    /// The last turn ended before everything was taken that had come.
    may_go_on: bool,
    /// The replica met an error that was its own, before it had work or after, or has found damage.
    pub met_error_of_server: bool,
    /// It has the fragment for itself, and gets no tasks.
    is_whole: bool,
    tasks: GivenTasks,
    /// The scan in which it waits for what others give back.
    parked: Option<u32>,
    /// It has just given something back itself, so it asks anew after the others.
    pub gave_back: bool,
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
    /// `is_whole`: it has the fragment for itself.
    pub fn new(
        replica: u16,
        process: u16,
        lease: LeaseId,
        reused: bool,
        deadline: u64,
        is_whole: bool,
    ) -> Self {
        Link {
            is_whole,
            ..Link::with_lease(replica, process, Some(lease), reused, deadline)
        }
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
            machine: Machine::default(),
            trouble: None,
            lease,
            reused,
            deadline,
            watch: None,
            last_served: now_micros(),
            challenge: secret::nonce(),
            wants_write: true,
            readable: true,
            was_connected: reused,
            connect_failed: false,
            met_error_of_query: false,
            was_behind: false,
            may_go_on: false,
            met_error_of_server: false,
            is_whole: false,
            tasks: GivenTasks::default(),
            parked: None,
            gave_back: false,
            pending: HeldRows::default(),
            ready: HeldRows::default(),
            rows: 0,
            bytes: 0,
            replay_wait_us: 0,
            report: None,
        }
    }

    /// A link that could not even be started.
    pub fn unavailable(replica: u16, process: u16, why: &str) -> Self {
        let mut link = Link::with_lease(replica, process, None, false, 0);
        // A fresh machine can fail.
        let _ = link.machine.on(Event::Failed);
        link.trouble = Some(format!("unavailable: {why}"));
        link
    }

    pub fn fate(&self) -> Fate {
        self.machine.fate()
    }

    /// May it still contribute rows?
    pub fn is_live(&self) -> bool {
        self.machine.is_live()
    }

    pub fn is_closed(&self) -> bool {
        self.machine.phase() == Phase::Closed
    }

    /// It was given work.
    pub fn had_tasks(&self) -> bool {
        self.tasks.total() > 0
    }

    /// Did it contribute to the fragment?
    pub fn took_part(&self) -> bool {
        match self.fate() {
            Fate::Done => self.had_tasks() || self.is_whole,
            Fate::Stopped => self.had_tasks(),
            _ => false,
        }
    }

    /// Sockets to wait for.
    pub fn interests(&self) -> impl Iterator<Item = Interest> {
        let idle = self.is_closed() || self.is_throttled();
        let lease = self.lease.filter(|_| !idle);
        let own = lease.and_then(|lease| {
            let connection = pool::get(lease)?;
            let made = self.machine.phase() != Phase::Connecting;
            Some(Interest {
                socket: connection.socket(),
                write: self.wants_write,
                lasting: made.then(|| lease.number()),
            })
        });
        let watch = self.watch.as_ref().filter(|_| !idle);
        own.into_iter().chain(watch.and_then(Watch::interest))
    }

    /// Enough rows wait for the consumer: leave the rest in the socket.
    fn is_throttled(&self) -> bool {
        self.machine.phase() == Phase::Working && self.ready.total_bytes() > READY_BYTES_MAX
    }

    /// Time of the next deadline.
    pub fn deadline(&self) -> Option<u64> {
        if self.is_closed() || self.is_throttled() {
            return None;
        }
        match &self.watch {
            Some(watch) => Some(watch.due()),
            None => Some(self.deadline),
        }
    }

    /// Which sockets are ready. What was not asked for may be.
    pub fn is_told(&mut self, ready: &Ready) {
        let socket = self.lease.and_then(pool::get).map(|own| own.socket());
        self.readable |= self.is_throttled() || socket.is_none_or(|socket| ready.may_have(socket));
    }

    /// The time until now was spent on waiting, for this link among others.
    pub fn has_been_waited_for(&mut self) {
        self.last_served = now_micros();
    }

    /// Does whatever can be done without waiting. Answers whether anything happened.
    pub fn service(&mut self, shared: &mut Shared) -> bool {
        if self.is_closed() {
            return false;
        }
        if self.is_throttled() || self.parked.is_some() {
            // It is not asked to speak.
            self.heard(shared);
        }
        if self.is_throttled() {
            return false;
        }
        self.forgive_own_pause();
        let before = self.progress();
        let turn = match self.lease.and_then(pool::get) {
            Some(mut connection) => {
                let turn = self.turn(&mut connection, shared);
                let flushed = connection.flush();
                turn.and_then(|()| {
                    if self.machine.phase() != Phase::Connecting {
                        self.wants_write = !flushed?;
                    }
                    Ok(())
                })
            }
            None => Err(protocol("connection was closed")),
        };
        let turn = turn.and_then(|()| match self.is_closed() {
            true => Ok(()),
            false => self.look(shared),
        });
        match turn {
            Err(failure) => self.fail(failure, shared),
            Ok(()) if self.is_closed() => self.release(true, shared),
            Ok(()) => {}
        }
        before != self.progress() || self.may_go_on
    }

    fn progress(&self) -> (Phase, u64, u32, usize) {
        let tasks = &self.tasks;
        let phase = self.machine.phase();
        (phase, self.rows, tasks.total(), tasks.outstanding())
    }

    /// Time in which this side was busy otherwise is not the replica's.
    fn forgive_own_pause(&mut self) {
        let now = now_micros();
        let pause = now.saturating_sub(self.last_served);
        if pause > BUSY_US {
            self.deadline += pause;
            if let Some(watch) = &mut self.watch {
                watch.postpone(pause);
            }
        }
        self.last_served = now;
    }

    /// Has it taken too long?
    fn look(&mut self, shared: &Shared) -> Result<(), Failure> {
        if let (Some(watch), Some(lease)) = (&mut self.watch, self.lease) {
            return watch
                .look(lease, shared.pool_limits)
                .map_err(Failure::Infrastructure);
        }
        if now_micros() <= self.deadline {
            return Ok(());
        }
        Err(protocol(match self.machine.patience() {
            Patience::Connect => {
                self.connect_failed = true;
                "connection timed out"
            }
            Patience::Announcement => "replica did not announce itself in time",
            Patience::Silence | Patience::Watched | Patience::ForEver => {
                "replica was silent for too long"
            }
        }))
    }

    /// Something came from the replica, or nothing is expected to.
    fn heard(&mut self, shared: &Shared) {
        match &mut self.watch {
            Some(watch) => watch.heard(),
            None if self.machine.patience() == Patience::Silence => {
                self.deadline = shared.silence_deadline();
            }
            None => {}
        }
    }

    /// Moves the machine on; the time that the new phase may take begins.
    fn on(&mut self, event: Event, shared: &Shared) -> Result<Action, Failure> {
        let before = self.machine.phase();
        let action = self.machine.on(event)?;
        if self.machine.phase() != before {
            match self.machine.patience() {
                Patience::Watched => self.watch = Some(shared.watch()),
                Patience::Announcement => self.deadline = shared.announcement_deadline(),
                Patience::Silence => self.deadline = shared.silence_deadline(),
                Patience::Connect | Patience::ForEver => {}
            }
            if self.machine.patience() != Patience::Watched
                && let Some(watch) = self.watch.take()
            {
                watch.end(shared.pool_limits);
            }
        }
        Ok(action)
    }

    fn turn(&mut self, connection: &mut Connection, shared: &mut Shared) -> Result<(), Failure> {
        if self.machine.phase() == Phase::Connecting {
            return self.connect(connection, shared);
        }
        // A row may be on its way for longer than silence is tolerated.
        if self.watch.as_ref().is_some_and(Watch::suspects) && connection.is_ready_for(false) {
            self.heard(shared);
        }
        if self.watch.is_none() && now_micros() > self.deadline {
            // What has come in time counts, although nobody has told of it.
            self.readable = true;
        }
        if std::mem::replace(&mut self.readable, connection.is_encrypted()) {
            connection.consume_input()?;
        }
        // Encryption keeps what found no room in libpq's buffer, and then there may be nothing on the socket to
        // wait for.
        let encrypted = connection.is_encrypted();
        let mut may_hold_back = encrypted;
        let mut bytes = 0;
        self.may_go_on = false;
        loop {
            match self.machine.phase() {
                Phase::Calling | Phase::Leaving => match connection.next_result() {
                    ResultRead::Nothing => return Ok(()),
                    ResultRead::Result(result) if result.status() == ResultStatus::CopyBoth => {
                        if self.on(Event::Called, shared)? == Action::SendStop {
                            self.send(&ToReplica::Stop, connection)?;
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
                        self.on(Event::Ended, shared)?;
                    }
                },
                Phase::Closed | Phase::Connecting => return Ok(()),
                Phase::Greeting | Phase::Waiting | Phase::Working | Phase::Stopping => {
                    if self.is_throttled() {
                        return Ok(());
                    }
                    match connection.copy_data() {
                        CopyRead::Nothing if may_hold_back => {
                            may_hold_back = false;
                            connection.consume_input()?;
                        }
                        CopyRead::Nothing => return Ok(()),
                        CopyRead::Message(message) => {
                            bytes += message.len();
                            may_hold_back = encrypted && bytes < TURN_BYTES_MAX;
                            self.may_go_on = encrypted && !may_hold_back;
                            self.heard(shared);
                            self.message(message, connection, shared)?;
                        }
                        CopyRead::Ended => return Err(early_end(connection)),
                        CopyRead::Failed(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    fn connect(&mut self, connection: &mut Connection, shared: &Shared) -> Result<(), Failure> {
        if !self.reused {
            if !connection.is_ready_for(self.wants_write) {
                return Ok(());
            }
            match connection.poll_connect() {
                ConnectPoll::NeedRead => self.wants_write = false,
                ConnectPoll::NeedWrite => self.wants_write = true,
                ConnectPoll::Ready => {
                    self.was_connected = true;
                    shared.step(self, Step::Connected, 0, 0, "");
                }
                ConnectPoll::Failed(error) => {
                    self.connect_failed = true;
                    return Err(error.into());
                }
            }
            if !self.was_connected {
                return Ok(());
            }
        }
        self.on(Event::Connected, shared)?;
        test_point!("exec-connected");
        let challenge: String = self
            .challenge
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let call = CString::new(format!("CALL parallel_replicas.serve('\\x{challenge}')"))
            .map_err(|_| protocol("challenge cannot be sent"))?;
        connection.send_query(&call)?;
        Ok(())
    }

    fn message(
        &mut self,
        message: CopyBuffer,
        connection: &mut Connection,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        if frame::is_rows(&message) {
            frame::check_rows(&message, LEAST_TUPLE_BYTES)
                .map_err(|error| protocol(&format!("replica sent damaged rows: {error}")))?;
            if self.on(Event::Rows, shared)? == Action::HoldRows {
                self.bytes += message.len() as u64;
                self.pending
                    .push(message, shared.memory_limit, shared.context);
            }
            return Ok(());
        }
        let frame: ToCoordinator = frame::decode(&message)
            .map_err(|error| protocol(&format!("replica sent a damaged frame: {error}")))?;
        let started = now_micros();
        // What a frame says is looked at before the machine takes it for what it claims to be.
        match (self.machine.phase(), &frame) {
            (Phase::Greeting, ToCoordinator::Hello(hello)) => self.judge(hello, shared)?,
            (Phase::Working, ToCoordinator::FragmentDone(report)) => self.tasks.ended(report)?,
            (Phase::Stopping, _) => {}
            (_, ToCoordinator::Refused(refusal)) => {
                return Err(Failure::Refused(refusal.clone()));
            }
            _ => {}
        }
        match (self.on(Event::of(&frame), shared)?, frame) {
            (Action::SendBegin, ToCoordinator::Hello(hello)) => {
                self.send_begin(&hello.nonce, connection, shared)
            }
            (Action::Watch, ToCoordinator::Announcement(announcement)) => {
                self.replay_wait_us = announcement.replay_wait_us;
                events::add(Counter::ReplayWaitMicroseconds, announcement.replay_wait_us);
                shared.step(self, Step::Announced, 0, announcement.replay_wait_us, "");
                events::add(
                    Counter::HandleAnnouncementMicroseconds,
                    now_micros() - started,
                );
                Ok(())
            }
            (Action::GiveTask, ToCoordinator::Request { scan }) => {
                for (left, task) in self.tasks.turn_to(scan)? {
                    shared.demands.settle_task(*left, task.id);
                }
                self.give(scan, connection, shared)
            }
            (Action::PassTaskOn, ToCoordinator::TaskDone(report)) => {
                self.pass_task_on(&report, connection, shared)
            }
            (Action::TakeBack, ToCoordinator::GaveBack { scan, id }) => {
                self.take_back(scan, id, shared)
            }
            (Action::PassAllOn, ToCoordinator::FragmentDone(report)) => {
                self.pass_all_on(report, shared);
                connection.put_copy_end()?;
                Ok(())
            }
            (Action::HangUp, _) => {
                connection.put_copy_end()?;
                Ok(())
            }
            (_, ToCoordinator::Used { cpu_us }) if self.machine.phase() == Phase::Working => {
                queue::links_used(cpu_us);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// May this server be shown the plan? It must know the secret and be the same cluster.
    fn judge(&self, hello: &Hello, shared: &Shared) -> Result<(), Failure> {
        if hello.instance_id == shared.instance_id {
            return Err(refused("same_server", "the replica is this server itself"));
        }
        if !secret::verify_hello(&shared.secret, &self.challenge, hello) {
            return Err(refused(
                "authentication",
                "the server does not know the secret of this cluster",
            ));
        }
        if hello.identity != shared.identity {
            let difference = identity_difference(&shared.identity, &hello.identity);
            return Err(refused("identity", difference));
        }
        Ok(())
    }

    /// Sends the plan, and proof of who this server is.
    fn send_begin(
        &mut self,
        nonce: &Nonce,
        connection: &mut Connection,
        shared: &Shared,
    ) -> Result<(), Failure> {
        test_point!("exec-greeted");
        let mac = secret::authenticate(&shared.secret, nonce, &shared.begin)
            .ok_or_else(|| protocol("secret cannot be used"))?;
        let body = shared.begin.to_vec();
        self.send(&ToReplica::Begin { mac, body }, connection)
    }

    fn send(&mut self, frame: &ToReplica, connection: &mut Connection) -> Result<(), Failure> {
        let bytes = frame::encode(frame)
            .map_err(|error| protocol(&format!("frame cannot be sent: {error}")))?;
        match connection.put_copy_data(&bytes)? {
            true => Ok(()),
            false => Err(protocol("replica does not read")),
        }
    }

    /// Ends the link, and tells the server's log why.
    fn fail(&mut self, failure: Failure, shared: &mut Shared) {
        let was_live = self.is_live();
        self.met_error_of_server |= was_live && failure.is_of_server();
        if self.on(failure.event(), shared).is_err() {
            // Refused out of turn is a failure as any other. No phase takes that amiss.
            let _ = self.on(Event::Failed, shared);
        }
        let name = shared.replica_name(self.replica);
        let query = shared.query_label();
        if was_live {
            let step = match self.fate() {
                Fate::Refused => {
                    events::add(Counter::RefusedCount, 1);
                    self.was_behind = failure.is_of_replay();
                    if failure.is_of_authentication() {
                        secret::forget();
                    }
                    pgrx::log!("{query}: replica \"{name}\" refused to take part: {failure}");
                    self.trouble = Some(format!("refused: {failure}"));
                    Step::Refused
                }
                Fate::Lost => {
                    events::add(Counter::LostCount, 1);
                    self.met_error_of_query = matches!(failure, Failure::OfTheQuery(_));
                    pgrx::log!("{query}: replica \"{name}\" was lost: {failure}");
                    self.trouble = Some(format!("lost: {failure}"));
                    Step::Lost
                }
                _ => {
                    pgrx::log!("{query}: replica \"{name}\" was unavailable: {failure}");
                    self.trouble = Some(format!("unavailable: {failure}"));
                    Step::Unavailable
                }
            };
            let granules = self.give_back(shared);
            shared.step(self, step, granules, 0, &failure.to_string());
        }
        self.release(false, shared);
    }

    /// What it was given and has not delivered is for others to do. Answers how many granules.
    fn give_back(&mut self, shared: &Shared) -> u64 {
        let mut granules = 0;
        for node in &shared.scans {
            // SAFETY: the scan's state lives as long as the query.
            let memory = unsafe { granule_scan::task_memory(*node) };
            if !memory.is_null() {
                let process = self.process;
                // SAFETY: as above.
                let lost = unsafe { tasks::with(memory, |state| state.lose(process)) };
                granules += u64::from(lost);
                if self.fate() == Fate::Lost {
                    events::add(Counter::RetriedMarks, u64::from(lost));
                }
            }
        }
        self.pending.clear();
        self.tasks.clear();
        self.parked = None;
        granules
    }

    /// Lets go of the connection.
    fn release(&mut self, reusable: bool, shared: &Shared) {
        if let Some(lease) = self.lease.take() {
            pool::release(lease, reusable, shared.pool_limits);
        }
    }

    /// Nothing more is wanted from it. A connection that is up is told so, and `service` sees it to
    /// its end; one in the making is left to the session's next query.
    pub fn stop(&mut self, shared: &mut Shared) {
        if self.is_live() {
            shared.step(self, Step::Stopped, 0, 0, "");
        }
        match self.on(Event::Stop, shared) {
            Ok(Action::Keep) => self.release(true, shared),
            Ok(Action::SendStop) => {
                self.pending.clear();
                self.tasks.clear();
                let told = self
                    .lease
                    .and_then(pool::get)
                    .is_some_and(|mut connection| {
                        self.send(&ToReplica::Stop, &mut connection).is_ok()
                            && connection.flush().is_ok()
                    });
                if !told {
                    self.fail(protocol("connection was lost"), shared);
                }
            }
            _ => {}
        }
    }

    /// Lets go of the connection, whatever state it is in, and of all rows.
    pub fn abandon(&mut self, shared: &mut Shared) {
        if !self.is_closed() {
            self.fail(protocol("not ended in time"), shared);
        }
        self.ready.clear();
        self.pending.clear();
    }
}

/// Bytes of rows that wait for the consumer, per link, before reading stops.
const READY_BYTES_MAX: usize = 1 << 20;

/// Bytes of an encrypted connection after which a turn ends, although there may be more to take without
/// waiting: others have their turn, and interrupts are served.
const TURN_BYTES_MAX: usize = 1 << 20;

/// A pause between two turns that is longer than this was this side's doing.
const BUSY_US: u64 = 20_000;
