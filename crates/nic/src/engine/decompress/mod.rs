//! Decompression: runs jobs of hosts on content that they have received.
//!
//! A job brings the state of its stream, its input and the buffer for its output, and all of them
//! return to the host with the answer. Jobs wait here and are run one at a time, in the order in
//! which they arrived, so that frames and operations are handled between two of them.
//!
//! Invariants: at most [`DecompressConfig::jobs_max`] jobs wait; nothing of a stream is kept after
//! the answer; a job is answered exactly once, also at a reset, at which it is refused. Knows no
//! decoder and no protocol.

mod counters;
#[cfg(test)]
mod tests;

use abi::decompress::{DecompressLimits, DecompressOutcome, DecompressRequest, Decompressed};
use abi::{Capabilities, Event, Op, Refusal};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use base::Instant;

use self::counters::DecompressCounters;
use super::Engine;
use crate::config::{DecompressConfig, DeviceConfig};
use crate::pipeline::Egress;

/// A job that waits.
#[derive(Debug)]
struct WaitingJob {
    since: Instant,
    queue: usize,
    request: Box<DecompressRequest>,
}

/// The decompression engine.
#[derive(Debug)]
pub(crate) struct DecompressEngine {
    config: DecompressConfig,
    waiting: VecDeque<WaitingJob>,
    counters: DecompressCounters,
}

impl DecompressEngine {
    /// Checks a job.
    ///
    /// # Errors
    /// The reason for which it is refused.
    fn check(&self, request: &DecompressRequest) -> Result<(), Refusal> {
        let job = &request.job;
        let longest = job.input.len().max(job.output.len());
        if !job.is_valid() || longest > self.config.buffer_bytes_max as usize {
            return Err(Refusal::DoesNotFit);
        }
        if self.waiting.len() >= self.config.jobs_max {
            return Err(Refusal::TableFull);
        }
        Ok(())
    }

    fn refuse(&mut self, job: WaitingJob, why: Refusal, out: &mut Egress) {
        self.counters.decompress_refused += 1;
        answer(job.queue, *job.request, DecompressOutcome::Refused(why), out);
    }
}

fn answer(
    queue: usize,
    DecompressRequest { id, job }: DecompressRequest,
    outcome: DecompressOutcome,
    out: &mut Egress,
) {
    out.emit(queue, Event::Decompressed(Box::new(Decompressed { id, job, outcome })));
}

impl Engine for DecompressEngine {
    const ALARMS: &'static [&'static str] = DecompressCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        let config = config.decompress.clone()?;
        let counters = DecompressCounters::default();
        Some(Self { config, waiting: VecDeque::new(), counters })
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        let buffer_bytes_max = self.config.buffer_bytes_max;
        capabilities.decompress = Ok(DecompressLimits { buffer_bytes_max });
    }

    fn handle_op(
        engine: Option<&mut Self>,
        now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        let Op::Decompress(request) = op else { return Some(op) };
        let Some(engine) = engine else {
            answer(queue, *request, DecompressOutcome::Refused(Refusal::Disabled), out);
            return None;
        };
        let checked = engine.check(&request);
        let job = WaitingJob { since: now, queue, request };
        match checked {
            Ok(()) => engine.waiting.push_back(job),
            Err(why) => engine.refuse(job, why, out),
        }
        None
    }

    /// The oldest job is due since it arrived.
    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|job| job.since)
    }

    fn handle_timeout(&mut self, _now: Instant, out: &mut Egress) {
        let Some(WaitingJob { queue, mut request, .. }) = self.waiting.pop_front() else { return };
        let result = request.job.run();
        self.counters.decompress_jobs += 1;
        match &result {
            Ok(progress) => {
                self.counters.decompress_input_bytes += progress.consumed as u64;
                self.counters.decompress_bytes += progress.produced as u64;
            }
            Err(_) => self.counters.decompress_faults += 1,
        }
        answer(queue, *request, result.into(), out);
    }

    fn quiesce(&mut self, _now: Instant, queue: usize, out: &mut Egress) {
        for job in core::mem::take(&mut self.waiting) {
            if job.queue == queue {
                self.refuse(job, Refusal::Ended, out);
            } else {
                self.waiting.push_back(job);
            }
        }
    }

    fn reset(&mut self, out: &mut Egress) {
        for job in core::mem::take(&mut self.waiting) {
            self.refuse(job, Refusal::DeviceReset, out);
        }
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("decompress_waiting", self.waiting.len() as u64);
    }
}
