//! The query queue: who runs, who waits, and who is next.
//!
//! Plain data without pointers, so that it can lie in shared memory: a [`Header`], one [`Entry`] per
//! backend, and the resource groups. [`Queue`] is a view of them that the caller makes while it holds
//! the lock. All times are milliseconds of a clock of the caller's. Nothing here waits, allocates or
//! panics: what happens is that entries change their state, and the caller is told whom to wake.
//!
//! Zeroed memory is an empty queue, so entries and groups are linked by their number plus 1.
//!
//! An entry goes Free -> Pending -> Running -> Free. The step from Pending to Running is taken by
//! whoever makes room, on behalf of the waiter: nobody can get in between. A waiter whose time is
//! over becomes Expired instead. [`Queue::release`] frees an entry in whatever state it is, so
//! cleaning up twice, or not knowing how far one got, does no harm.

pub mod capacity;
pub mod drivers;
pub mod sjf;
pub mod swrr;

use swrr::{CLASSES, Swrr, class_of};

/// What kind of work a request is for; each is switched on by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    #[default]
    None = 0,
    Select = 1,
    Load = 2,
    Statistic = 4,
}

/// Order in which queries of different sizes are picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Strategy {
    #[default]
    Swrr = 0,
    Sjf = 1,
}

/// What the settings and measurements say. All zeroes: everything is admitted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Kinds of work that queue: a sum of [`Kind`]s.
    pub kinds: u32,
    /// Slots count (version 2); otherwise queries and measured load do (version 1).
    pub by_slots: bool,
    /// Groups' limits count.
    pub by_group: bool,
    /// Version 1: a server is above its memory or CPU limit.
    pub overloaded: bool,
    pub strategy: Strategy,
    /// Slots that running queries may hold together; at least 1 where slots count.
    pub total: u32,
    pub servers: u32,
    /// Queries that may run at once; 0: no limit.
    pub concurrency: u32,
    /// Requests that may wait; 0: no limit.
    pub queued_max: u32,
    /// How long a request may wait; 0: no limit.
    pub timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    #[default]
    Free = 0,
    Pending = 1,
    Running = 2,
    /// Waited for too long; the waiter has to release it.
    Expired = 3,
}

/// Why a pending request is not running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Blocked {
    /// It is somebody else's turn.
    #[default]
    Order = 0,
    /// It is next, and needs more slots than are free.
    Slots = 1,
    /// As many queries are running as may.
    Concurrency = 2,
    /// Its group is at its limit.
    Group = 3,
    /// A server is above its memory or CPU limit.
    Overload = 4,
}

/// How a running request got there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Admitted {
    /// It was its turn and there was room.
    #[default]
    Scheduler = 0,
    /// Its transaction held what others may wait for.
    InTransaction = 1,
    /// It blocked somebody while it waited.
    Blocker = 2,
    /// Its kind of work does not queue any more.
    SwitchedOff = 3,
}

impl Admitted {
    /// Whatever the limits were.
    fn is_over(self) -> bool {
        self != Admitted::Scheduler
    }
}

/// What a backend asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub slots: u32,
    /// Number of its group plus 1; 0: none.
    pub group: u32,
}

/// A backend's place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    pub kind: Kind,
    /// Needed while pending, held while running.
    pub slots: u32,
    pub group: u32,
    pub blocked: Blocked,
    pub admitted: Admitted,
    next: u32,
    previous: u32,
    /// Number of arrival.
    pub ticket: u64,
    pub arrived_ms: u64,
    /// When it began to run.
    pub admitted_ms: u64,
}

/// A resource group's limits and what it uses. Its name is the caller's matter.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Queries that may run at once; 0: no limit.
    pub concurrency: u32,
    /// It uses more CPU or memory than it may.
    pub overloaded: bool,
    pub running: u32,
    /// Of them, those that were admitted over the limits.
    pub running_over: u32,
    pub pending: u32,
    pub total: u64,
    pub timeouts: u64,
}

impl Group {
    fn is_full(&self) -> bool {
        self.overloaded || is_at_limit(self.concurrency, self.running, self.running_over)
    }
}

/// May no more run? Those admitted over the limits count, but where only they run there is always
/// room for one, so that a steady stream of them cannot keep the others out for ever.
fn is_at_limit(concurrency: u32, running: u32, running_over: u32) -> bool {
    concurrency > 0 && running >= concurrency && running > running_over
}

/// What happened since the server started.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests.
    pub total: u64,
    /// Requests that had to wait.
    pub queued: u64,
    pub timeouts: u64,
    /// Requests that found the queue full.
    pub rejected: u64,
    /// Requests admitted over the limits because of what their transaction held.
    pub in_transaction: u64,
    /// Waiters admitted over the limits because they blocked somebody.
    pub blockers: u64,
    /// Requests admitted per size class.
    pub admitted: [u64; CLASSES],
}

/// Everything but the entries and groups.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub limits: Limits,
    pub running: u32,
    /// Of them, those that were admitted over the limits.
    pub running_over: u32,
    pub pending: u32,
    /// Slots held by running requests; above the total only because of requests that were admitted
    /// over the limits.
    pub slots: u64,
    /// Of them, those of requests that were admitted over the limits.
    pub slots_over: u64,
    first: u32,
    last: u32,
    /// Version 1: the group to begin with.
    rotation: u32,
    tickets: u64,
    swrr: Swrr,
    pub counters: Counters,
}

impl Header {
    /// The round robin's credit of each class.
    pub fn class_states(&self) -> [i64; CLASSES] {
        self.swrr.states()
    }
}

/// Were settings that were read at `read_at` read later than others? Times after `now` are from
/// before the clock was set back, so everything else is later.
pub fn is_later_reading(read_at: i64, other: i64, now: i64) -> bool {
    (read_at <= now, read_at) > (other <= now, other)
}

/// The queue, seen by whoever holds its lock.
pub struct Queue<'a> {
    pub header: &'a mut Header,
    pub entries: &'a mut [Entry],
    pub groups: &'a mut [Group],
}

impl Queue<'_> {
    /// Takes new limits over; everybody keeps their place. [`Queue::schedule`] then applies them.
    pub fn set_limits(&mut self, limits: Limits) {
        let sizes = |limits: &Limits| (limits.total, limits.servers, limits.by_slots);
        if sizes(&limits) != sizes(&self.header.limits) {
            // The classes mean something else now.
            self.header.swrr = Swrr::default();
        }
        self.header.limits = limits;
    }

    /// Puts a request at the end of the queue. Nothing happens unless the entry is free.
    pub fn enqueue(&mut self, index: usize, request: Request, now_ms: u64) {
        let number = index as u32 + 1;
        let last = self.header.last;
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        if entry.state != State::Free {
            return;
        }
        *entry = Entry {
            state: State::Pending,
            kind: request.kind,
            slots: request.slots.max(1),
            group: request.group,
            ticket: self.header.tickets,
            arrived_ms: now_ms,
            previous: last,
            ..Entry::default()
        };
        self.header.tickets += 1;
        self.header.last = number;
        match self.entry_mut(last) {
            Some(before) => before.next = number,
            None => self.header.first = number,
        }
        self.header.pending += 1;
        self.header.counters.total += 1;
        if let Some(group) = self.group_mut(request.group) {
            group.pending += 1;
            group.total += 1;
        }
        let class = self.class(index);
        let company = self.members(class).take(2).count();
        if company == 1 && !self.is_held_back_by_group(index) {
            self.header.swrr.arrived_in_empty(index, class);
        }
    }

    /// Are more waiting than may? To be asked by whoever came last.
    pub fn is_overfull(&self) -> bool {
        let most = self.header.limits.queued_max;
        most > 0 && self.header.pending > most
    }

    /// Grants to whoever can run now, and calls `wake` with each one's index.
    pub fn schedule(&mut self, now_ms: u64, wake: &mut dyn FnMut(usize)) {
        self.expire(now_ms, wake);
        self.admit_switched_off(now_ms, wake);
        if self.header.limits.by_slots {
            self.schedule_by_slots(now_ms, wake);
        } else {
            self.schedule_by_load(now_ms, wake);
        }
    }

    /// Admits a pending request whatever the limits are.
    pub fn admit_over(&mut self, index: usize, admitted: Admitted, now_ms: u64) {
        if self.state(index) != State::Pending {
            return;
        }
        match admitted {
            Admitted::InTransaction => self.header.counters.in_transaction += 1,
            Admitted::Blocker => self.header.counters.blockers += 1,
            Admitted::Scheduler | Admitted::SwitchedOff => {}
        }
        self.grant(index, admitted, now_ms);
    }

    /// Changes how many slots a running request holds, whatever the limits are.
    pub fn resize(&mut self, index: usize, slots: u32) {
        let slots = slots.max(1);
        if let Some(entry) = self.entries.get_mut(index)
            && entry.state == State::Running
        {
            let change = |sum: u64| sum - u64::from(entry.slots) + u64::from(slots);
            self.header.slots = change(self.header.slots);
            if entry.admitted.is_over() {
                self.header.slots_over = change(self.header.slots_over);
            }
            entry.slots = slots;
        }
    }

    /// Lets a running request hold up to `most` slots, of those that are free and that nobody waits
    /// for. Answers how many it holds.
    pub fn grow(&mut self, index: usize, most: u32) -> u32 {
        let free = match self.header.pending {
            0 => u64::from(self.header.limits.total).saturating_sub(self.header.slots),
            _ => 0,
        };
        let Some(entry) = self.entries.get(index) else {
            return 0;
        };
        let more = u64::from(most.saturating_sub(entry.slots)).min(free);
        let slots = entry.slots + more as u32;
        self.resize(index, slots);
        self.entries[index].slots
    }

    /// Frees an entry, in whatever state it is. Answers in which it was.
    pub fn release(&mut self, index: usize) -> State {
        let state = self.state(index);
        match state {
            State::Free => return state,
            State::Pending => self.unlink(index),
            State::Running => {
                let entry = self.entries[index];
                let over = u32::from(entry.admitted.is_over());
                self.header.running -= 1;
                self.header.running_over -= over;
                self.header.slots -= u64::from(entry.slots);
                self.header.slots_over -= u64::from(over * entry.slots);
                if let Some(group) = self.group_mut(entry.group) {
                    group.running -= 1;
                    group.running_over -= over;
                }
            }
            State::Expired => {}
        }
        self.entries[index] = Entry::default();
        state
    }

    /// Frees a pending entry that found the queue full.
    pub fn reject(&mut self, index: usize) {
        if self.release(index) == State::Pending {
            self.header.counters.rejected += 1;
        }
    }

    pub fn state(&self, index: usize) -> State {
        self.entries
            .get(index)
            .map_or(State::Free, |entry| entry.state)
    }

    /// How many pending requests arrived before this one, plus 1; 0 if it is not pending.
    pub fn position(&self, index: usize) -> u32 {
        self.pending()
            .position(|other| other == index)
            .map_or(0, |before| before as u32 + 1)
    }

    /// Pending requests by arrival.
    pub fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        let mut number = self.header.first;
        // Bounded, so that nothing that is written here can make it endless.
        (0..self.entries.len()).map_while(move |_| {
            let index = number.checked_sub(1)? as usize;
            number = self.entries.get(index)?.next;
            Some(index)
        })
    }

    fn first_pending(&self, test: impl Fn(&Entry) -> bool) -> Option<usize> {
        self.pending().find(|index| test(&self.entries[*index]))
    }

    /// Size class of an entry.
    pub fn class(&self, index: usize) -> usize {
        let limits = &self.header.limits;
        class_of(self.entries[index].slots, limits.total, limits.servers)
    }

    fn entry_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(number.checked_sub(1)? as usize)
    }

    fn group_mut(&mut self, group: u32) -> Option<&mut Group> {
        self.groups.get_mut(group.checked_sub(1)? as usize)
    }

    fn is_held_back_by_group(&self, index: usize) -> bool {
        self.header.limits.by_group
            && self.entries[index]
                .group
                .checked_sub(1)
                .and_then(|group| self.groups.get(group as usize))
                .is_some_and(Group::is_full)
    }

    /// Pending requests of a class whose group lets them run, by arrival.
    fn members(&self, class: usize) -> impl Iterator<Item = usize> + '_ {
        self.pending()
            .filter(move |index| self.class(*index) == class)
            .filter(|index| !self.is_held_back_by_group(*index))
    }

    /// Takes a pending entry out of the list; its state is the caller's to change.
    fn unlink(&mut self, index: usize) {
        let entry = self.entries[index];
        match self.entry_mut(entry.previous) {
            Some(before) => before.next = entry.next,
            None => self.header.first = entry.next,
        }
        match self.entry_mut(entry.next) {
            Some(after) => after.previous = entry.previous,
            None => self.header.last = entry.previous,
        }
        self.entries[index].next = 0;
        self.entries[index].previous = 0;
        self.header.pending -= 1;
        if let Some(group) = self.group_mut(entry.group) {
            group.pending -= 1;
        }
        if self
            .header
            .swrr
            .kept()
            .is_some_and(|(kept, _)| kept == index)
        {
            self.header.swrr.forget();
        }
    }

    fn grant(&mut self, index: usize, admitted: Admitted, now_ms: u64) {
        let class = self.class(index);
        self.unlink(index);
        let entry = &mut self.entries[index];
        entry.state = State::Running;
        entry.admitted = admitted;
        entry.admitted_ms = now_ms;
        let (slots, group) = (entry.slots, entry.group);
        let over = u32::from(admitted.is_over());
        self.header.running += 1;
        self.header.running_over += over;
        self.header.slots += u64::from(slots);
        self.header.slots_over += u64::from(over * slots);
        self.header.counters.admitted[class] += 1;
        if let Some(group) = self.group_mut(group) {
            group.running += 1;
            group.running_over += over;
        }
    }

    fn expire(&mut self, now_ms: u64, wake: &mut dyn FnMut(usize)) {
        let timeout = self.header.limits.timeout_ms;
        if timeout == 0 {
            return;
        }
        // By arrival, so whoever expires is at the front.
        while let Some(index) = self.first_pending(|_| true) {
            if now_ms < self.entries[index].arrived_ms.saturating_add(timeout) {
                return;
            }
            self.unlink(index);
            self.entries[index].state = State::Expired;
            self.header.counters.timeouts += 1;
            let group = self.entries[index].group;
            if let Some(group) = self.group_mut(group) {
                group.timeouts += 1;
            }
            wake(index);
        }
    }

    /// Waiters of a kind that does not queue any more.
    fn admit_switched_off(&mut self, now_ms: u64, wake: &mut dyn FnMut(usize)) {
        let kinds = self.header.limits.kinds;
        while let Some(index) = self.first_pending(|entry| entry.kind as u32 & kinds == 0) {
            self.grant(index, Admitted::SwitchedOff, now_ms);
            wake(index);
        }
    }

    fn is_at_concurrency_limit(&self) -> bool {
        let header = &*self.header;
        is_at_limit(
            header.limits.concurrency,
            header.running,
            header.running_over,
        )
    }

    /// Version 2: by turns of the strategy. The first that does not fit ends the round, so that
    /// small ones cannot slip past a large one for ever.
    fn schedule_by_slots(&mut self, now_ms: u64, wake: &mut dyn FnMut(usize)) {
        while let Some(index) = self.lone().or_else(|| self.peek(now_ms)) {
            if let Some(obstacle) = self.obstacle(index) {
                self.entries[index].blocked = obstacle;
                return;
            }
            self.grant(index, Admitted::Scheduler, now_ms);
            wake(index);
        }
        // Whoever is pending although nobody can be picked is held back by its group.
        let mut number = self.header.first;
        while let Some(entry) = self.entry_mut(number) {
            number = entry.next;
            entry.blocked = Blocked::Group;
        }
    }

    /// What keeps a request from running although it is its turn.
    fn obstacle(&self, index: usize) -> Option<Blocked> {
        // The first one always fits: neither its size nor those admitted over the limits may
        // keep it out for ever.
        let fits = self.header.slots == self.header.slots_over
            || self.header.slots + u64::from(self.entries[index].slots)
                <= u64::from(self.header.limits.total);
        if !fits {
            return Some(Blocked::Slots);
        }
        self.is_at_concurrency_limit()
            .then_some(Blocked::Concurrency)
    }

    /// The only one that waits, if it can run. Then there is nothing to choose, and what the strategy
    /// remembers of its choices stays as it is: with seven classes empty, a turn takes it many rounds.
    fn lone(&self) -> Option<usize> {
        if self.header.pending != 1 {
            return None;
        }
        self.pending()
            .next()
            .filter(|index| !self.is_held_back_by_group(*index))
            .filter(|index| self.obstacle(*index).is_none())
    }

    /// Who is next; the same until that one runs or leaves, or something smaller arrives.
    pub fn peek(&mut self, now_ms: u64) -> Option<usize> {
        match self.header.limits.strategy {
            Strategy::Swrr => self.peek_by_class(),
            Strategy::Sjf => self.peek_shortest(now_ms),
        }
    }

    fn peek_by_class(&mut self) -> Option<usize> {
        if let Some((kept, _)) = self.header.swrr.kept() {
            if self.state(kept) == State::Pending && !self.is_held_back_by_group(kept) {
                return Some(kept);
            }
            self.header.swrr.forget();
        }
        let mut first_of = [None; CLASSES];
        for index in self.pending() {
            if !self.is_held_back_by_group(index) {
                first_of[self.class(index)].get_or_insert(index);
            }
        }
        // A class that was empty because a group was full.
        for (class, first) in first_of.iter().enumerate() {
            if let Some(first) = first
                && self.header.swrr.skips()[class] > 0
            {
                self.header.swrr.arrived_in_empty(*first, class);
            }
        }
        let class = self
            .header
            .swrr
            .next_class(first_of.map(|first| first.is_some()))?;
        let index = first_of[class]?;
        self.header.swrr.keep(index, class);
        Some(index)
    }

    fn peek_shortest(&self, now_ms: u64) -> Option<usize> {
        let limits = self.header.limits;
        self.pending()
            .filter(|index| !self.is_held_back_by_group(*index))
            .min_by_key(|index| {
                let entry = &self.entries[*index];
                let age = now_ms.saturating_sub(entry.arrived_ms);
                (
                    sjf::score(entry.slots, limits.total, age, limits.timeout_ms),
                    entry.ticket,
                )
            })
    }

    /// Version 1: by arrival within each group, groups by turns. A full group does not hold up the
    /// others.
    fn schedule_by_load(&mut self, now_ms: u64, wake: &mut dyn FnMut(usize)) {
        let turns = self.groups.len() as u32 + 1;
        let first_turn = self.header.rotation % turns;
        for turn in 0..turns {
            let group = (first_turn + turn) % turns;
            if self
                .group_mut(group)
                .is_some_and(|group| group.pending == 0)
            {
                continue;
            }
            while let Some(index) = self.first_pending(|entry| entry.group == group) {
                let obstacle = if self.is_at_concurrency_limit() {
                    Blocked::Concurrency
                } else if self.header.limits.overloaded {
                    Blocked::Overload
                } else if self.is_held_back_by_group(index) {
                    Blocked::Group
                } else {
                    self.grant(index, Admitted::Scheduler, now_ms);
                    wake(index);
                    self.header.rotation = (group + 1) % turns;
                    continue;
                };
                self.entries[index].blocked = obstacle;
                if obstacle != Blocked::Group {
                    return;
                }
                break;
            }
        }
    }
}
