//! What statements and resource groups use: CPU time by the operating system's clock of each process, and
//! memory.
//!
//! A statement's processes are the backend that holds its slots, the parallel workers of that, and the
//! processes that its links have on replicas. CPU time is added up where it is seen: when somebody looks at
//! processes that live, when a backend gives its slots back, when a worker exits, when a replica tells. In
//! [`ProcessUse`] is how far a process has been counted, so nothing is counted twice.

use super::shared::{self, GROUPS_MAX, ProcessUse, View};
use super::{holders, measure};
use crate::pg::proc;
use parallel_replicas_core::queue::{Kind, Request, State};
use pgrx::pg_sys;

/// CPU time in microseconds of a process, 0 for this one.
fn cpu_us(pid: i32) -> Option<u64> {
    proc::cpu_clock(pid).map(|time| time.max(0) as u64 / 1000)
}

/// Plans that cost less are over before anybody looks: not a hundredth of a second.
const WORTH_COUNTING: f64 = 1000.0;

/// Is CPU time counted? Always for a group, which may have many short ones. Reading the clock is a system
/// call, and would be a good part of what an admission costs.
pub fn is_worth_counting(request: &Request, cost: f64) -> bool {
    request.group > 0 || request.kind != Kind::Select || cost >= WORTH_COUNTING
}

/// What this backend has used before the statement, which does not count.
pub fn own_use() -> ProcessUse {
    ProcessUse {
        // SAFETY: plain global.
        pid: unsafe { pg_sys::MyProcPid },
        cpu_us: cpu_us(0).unwrap_or(0),
    }
}

/// One process that works for a statement.
#[derive(Clone, Copy)]
struct Process {
    /// In the process array.
    number: usize,
    pid: i32,
    /// The statement's entry.
    entry: usize,
    group: Option<usize>,
}

impl View<'_> {
    /// Adds CPU time to a statement, and to its group.
    fn add_cpu(&mut self, entry: usize, cpu_us: u64) {
        let group = self.queue.entries[entry].group.checked_sub(1);
        let details = &mut self.details[entry];
        details.cpu_us = details.cpu_us.saturating_add(cpu_us);
        if let Some(details) = group.and_then(|group| self.group_details.get_mut(group as usize)) {
            details.cpu_us = details.cpu_us.saturating_add(cpu_us);
        }
    }

    /// Adds what a process has used since it was counted last.
    fn count(&mut self, entry: usize, number: usize, pid: i32, cpu_us: u64) {
        let Some(last) = self.processes.get_mut(number) else {
            return;
        };
        let before = if last.pid == pid { last.cpu_us } else { 0 };
        let cpu_us = cpu_us.max(before);
        *last = ProcessUse { pid, cpu_us };
        self.add_cpu(entry, cpu_us - before);
    }

    /// This backend is about to give its slots back.
    pub fn count_own(&mut self) {
        let entry = shared::own_index();
        if self.queue.state(entry) == State::Running && self.queue.entries[entry].group > 0 {
            let details = self.details[entry];
            let used = cpu_us(0).unwrap_or(0);
            self.count(entry, details.process_number as usize, details.pid, used);
        }
    }
}

/// Links of this backend's statement have used so much on replicas.
pub fn links_used(cpu_us: u64) {
    if holders::is_empty() {
        return;
    }
    shared::locked(|view| {
        if view.queue.state(shared::own_index()) == State::Running {
            view.add_cpu(shared::own_index(), cpu_us);
        }
    });
}

/// This process ends; if it is a parallel worker of a statement that holds slots, it is counted.
pub fn process_ends() {
    if !proc::is_parallel_worker() {
        return;
    }
    let used = own_use();
    // SAFETY: this worker's own entry of the process array; its leader is there until it has ended.
    let (number, leader, pid) = unsafe {
        let leader = (*pg_sys::MyProc).lockGroupLeader;
        if leader.is_null() {
            return;
        }
        let number = (*pg_sys::MyProc).pgprocno as usize;
        (
            number,
            ((*leader).backendId - 1).max(0) as usize,
            (*leader).pid,
        )
    };
    shared::locked(|view| {
        let is_its = view
            .details
            .get(leader)
            .is_some_and(|it| it.pid == pid && it.is_counted);
        if is_its && view.queue.state(leader) == State::Running {
            view.count(leader, number, used.pid, used.cpu_us);
        }
    });
}

/// Counts what the processes of all statements have used until now.
pub fn count_all() {
    let mut processes = Vec::with_capacity(shared::processes());
    shared::locked(|view| collect(view, &mut processes));
    count_processes(&processes);
}

fn count_processes(processes: &[Process]) {
    let used: Vec<_> = processes
        .iter()
        .filter_map(|process| Some((*process, cpu_us(process.pid)?)))
        .collect();
    shared::locked(|view| {
        for (process, used) in &used {
            if is_still(process, view) {
                view.count(process.entry, process.number, process.pid, *used);
            }
        }
    });
}

/// Is it the process that was looked at, and of the same statement? One that has ended has counted itself.
fn is_still(process: &Process, view: &View<'_>) -> bool {
    // SAFETY: the process array is there for good; a plain load of a number.
    let pid = unsafe {
        let array = (*pg_sys::ProcGlobal).allProcs;
        std::ptr::read_volatile(&raw const (*array.add(process.number)).pid)
    };
    let entry = view.queue.entries[process.entry];
    pid == process.pid
        && entry.state == State::Running
        && entry.group.checked_sub(1).map(|group| group as usize) == process.group
}

/// Measures what each group has used in the last `elapsed_ms`, and whether that is more than it may.
pub fn measure_groups(elapsed_ms: u64) {
    let mut processes = Vec::with_capacity(shared::processes());
    shared::locked(|view| collect(view, &mut processes));
    count_processes(&processes);
    let mut memory = [0; GROUPS_MAX];
    for process in &processes {
        if let Some(group) = process.group {
            memory[group] += measure::private_bytes(process.pid).unwrap_or(0);
        }
    }
    let all = measure::capacity().memory.max(1) as f64;
    shared::locked(|view| {
        for (index, bytes) in memory.into_iter().enumerate() {
            let details = &mut view.group_details[index];
            let spent = details.cpu_us - details.cpu_us_measured;
            details.cpu_us_measured = details.cpu_us;
            details.cpu_cores = spent as f64 / (elapsed_ms.max(1) * 1000) as f64;
            details.mem_bytes = bytes;
            view.queue.groups[index].overloaded = !details.dropped
                && ((details.max_cpu_cores > 0.0 && details.cpu_cores >= details.max_cpu_cores)
                    || (details.mem_used_pct_limit > 0.0
                        && bytes as f64 / all >= details.mem_used_pct_limit));
        }
    });
}

/// Backends that hold slots, and their parallel workers. Reads other processes' entries of the process array
/// without a lock, as statistics do: a wrong process costs a wrong measurement.
fn collect(view: &View<'_>, processes: &mut Vec<Process>) {
    for number in 0..shared::processes() {
        // SAFETY: the process array is there for good, and group leaders are in it; plain loads of
        // numbers and of a pointer.
        let (pid, leader, backend) = unsafe {
            let all = (*pg_sys::ProcGlobal).allProcs;
            let process = all.add(number);
            let leader = match std::ptr::read_volatile(&raw const (*process).lockGroupLeader) {
                leader if leader.is_null() => process,
                leader => leader,
            };
            let pid = std::ptr::read_volatile(&raw const (*process).pid);
            let backend = std::ptr::read_volatile(&raw const (*leader).backendId);
            (pid, leader.offset_from(all), backend)
        };
        let Ok(index) = usize::try_from(backend - 1) else {
            continue;
        };
        let (Some(entry), Some(details)) = (view.queue.entries.get(index), view.details.get(index))
        else {
            continue;
        };
        let is_its = entry.state == State::Running
            && details.is_counted
            && details.process_number as isize == leader;
        if is_its && pid != 0 && processes.len() < processes.capacity() {
            processes.push(Process {
                number,
                pid,
                entry: index,
                group: entry.group.checked_sub(1).map(|group| group as usize),
            });
        }
    }
}
