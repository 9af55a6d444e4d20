//! The work of a link: tasks that it gets, gives back and has done, and the rows of them.

use super::Link;
use crate::exec::dispatch::Shared;
use crate::exec::failure::{Failure, protocol};
use crate::exec::give_back::Demand;
use crate::exec::granule_scan;
use crate::exec::tasks;
use crate::net::Connection;
use crate::net::pool;
use crate::pg::wait::now_micros;
use crate::shm::events::{self, Event as Counter};
use crate::shm::logs::Step;
use parallel_replicas_core::frame::{FragmentReport, TaskReport, ToReplica};
use parallel_replicas_core::link::Misreport;
use parallel_replicas_core::task_state::Task;
impl Link {
    /// Answers a process that has nothing to do in this scan, and gives it what it is to have ahead.
    pub(super) fn give(
        &mut self,
        scan: u32,
        connection: &mut Connection,
        shared: &mut Shared,
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
            let idle = self.tasks.outstanding() == 0;
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
                if idle && self.is_worth_waiting(scan, started, shared) {
                    self.parked = Some(scan);
                } else if idle {
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
                    cached_blocks: tasks::cached_blocks(&task, shared.owned_blocks(self.replica)),
                },
                connection,
            )?;
            shared.given(self, scan, &task);
            self.tasks.give(scan, task);
        }
        events::add(Counter::HandleRequestMicroseconds, now_micros() - started);
        Ok(())
    }

    /// Nothing is left for it in this scan. May others give something back soon?
    pub(super) fn is_worth_waiting(&self, scan: u32, now: u64, shared: &mut Shared) -> bool {
        for (index, node) in shared.scans.iter().enumerate() {
            // SAFETY: laid out before the links were serviced; the state lives as long as the query.
            let found = unsafe {
                let memory = granule_scan::task_memory(*node);
                tasks::with(memory, |state| {
                    Ok(match index == scan as usize {
                        _ if state.unassigned() > 0 => Err(()),
                        true => Ok(state.shrink_candidate(self.process, now)),
                        false => Ok(None),
                    })
                })
            };
            match found {
                // There is work: in another scan, or for a faster process.
                Err(()) => return false,
                Ok(Some(shrink)) => shared.demands.add(scan, shrink),
                Ok(None) => {}
            }
        }
        shared.demands.is_open()
    }

    /// Others want a part of what it has.
    pub fn ask_back(&mut self, demand: &Demand, shared: &mut Shared) {
        if !self.tasks.holds(demand.scan, demand.shrink.task) {
            // It has left the scan.
            return shared.demands.settle_task(demand.scan, demand.shrink.task);
        }
        let node = shared.scans[demand.scan as usize];
        // SAFETY: the scan's state lives as long as the query.
        let granule_blocks = unsafe { (*granule_scan::task_memory(node)).granule_blocks };
        let frame = ToReplica::Shrink {
            scan: demand.scan,
            id: demand.shrink.task,
            keep_until_block: demand.shrink.keep_until.saturating_mul(granule_blocks),
        };
        self.with_connection(shared, |link, connection, _| link.send(&frame, connection));
    }

    /// Something may have come back.
    pub fn ask_anew(&mut self, shared: &mut Shared) {
        self.gave_back = false;
        if let Some(scan) = self.parked.take()
            && self.is_live()
        {
            self.with_connection(shared, |link, connection, shared| {
                link.give(scan, connection, shared)
            });
        }
    }

    /// Does something outside of a turn.
    pub(super) fn with_connection(
        &mut self,
        shared: &mut Shared,
        f: impl FnOnce(&mut Self, &mut Connection, &mut Shared) -> Result<(), Failure>,
    ) {
        let done = match self.lease.and_then(pool::get) {
            Some(mut connection) => f(self, &mut connection, shared).and_then(|()| {
                self.wants_write = !connection.flush()?;
                Ok(())
            }),
            None => Err(protocol("connection was closed")),
        };
        if let Err(failure) = done {
            self.fail(failure, shared);
            shared.demands.settle_process(self.process);
        }
    }

    pub(super) fn take_back(
        &mut self,
        scan: u32,
        id: u32,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        let task = self.tasks.take_back(scan, id)?;
        // SAFETY: the scan exists, since a task of it was given; its state outlives us.
        unsafe {
            let memory = granule_scan::task_memory(shared.scans[scan as usize]);
            let process = self.process;
            tasks::with(memory, |state| state.give_back(process, task.id, 0));
        }
        let nothing = Task {
            granules: 0,
            ..task
        };
        shared.done(self, scan, &nothing, 0);
        shared.demands.settle_task(scan, id);
        Ok(())
    }

    pub(super) fn pass_task_on(
        &mut self,
        report: &TaskReport,
        connection: &mut Connection,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        let Some(node) = shared.scans.get(report.scan as usize) else {
            return Err(Misreport::NotHeld.into());
        };
        // SAFETY: the scan's state lives as long as the query.
        let memory = unsafe { granule_scan::task_memory(*node) };
        // SAFETY: laid out before the links were serviced for the first time.
        let granule_blocks = unsafe { (*memory).granule_blocks };
        test_point!("exec-task-done");
        let (task, granules) = self.tasks.done(report, granule_blocks)?;
        let (process, streaming) = (self.process, shared.streaming);
        let asked = shared.demands.is_asked(report.scan, task.id);
        // A claim: nothing ended before this session began.
        let now = now_micros();
        let ago_us = report.ago_us.min(now);
        // SAFETY: as above.
        unsafe {
            tasks::with(memory, |state| {
                if granules < task.granules {
                    state.give_back(process, task.id, granules)?;
                    if !asked {
                        state.limit_tasks(process, granules);
                    }
                }
                state.worked(process, task.id, now - ago_us, report.took_us)?;
                match streaming {
                    true => state.deliver(process, Task { granules, ..task }),
                    false => Ok(()),
                }
            });
        }
        let done = Task { granules, ..task };
        shared.done(self, report.scan, &done, ago_us);
        shared.demands.settle_task(report.scan, task.id);
        if granules < task.granules {
            shared.demands.came_back();
        }
        if shared.streaming {
            self.ready
                .append(&mut self.pending, shared.memory_limit, shared.context);
        }
        if asked && granules < task.granules && self.tasks.outstanding() == 0 {
            self.parked = Some(report.scan);
            self.gave_back = true;
            return Ok(());
        }
        self.give(report.scan, connection, shared)
    }

    pub(super) fn pass_all_on(&mut self, report: Box<FragmentReport>, shared: &mut Shared) {
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
        events::add(Counter::RowsReceived, report.rows);
        events::add(Counter::BytesReceived, self.bytes);
        shared.step(self, Step::Delivered, report.rows, self.bytes, "");
        self.report = Some(report);
    }
}
