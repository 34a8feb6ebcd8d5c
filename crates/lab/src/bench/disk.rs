//! Disk of accounted benchmarks: real files that are read at once and complete after a modeled
//! time.
//!
//! The cycles of the read itself are charged to the machine that submits it. The time that a real
//! disk would take passes on the virtual clock: a fixed latency, and a rate that is shared by all
//! requests.

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use base::{Duration, Instant};
use io::disk::Disk;

/// Parameters of a modeled disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskModel {
    /// Time from the end of a request's service to its completion.
    pub(crate) latency: Duration,
    /// Bytes per second; requests queue for it.
    pub(crate) bytes_per_s: u64,
}

/// A disk on the virtual clock.
pub(crate) struct ModelledDisk {
    files: Box<dyn Disk>,
    model: DiskModel,
    busy_until: Instant,
    /// Completions with their due times, which ascend: requests are served in order, and the
    /// latency is fixed.
    waiting: VecDeque<(Instant, DiskCompletion)>,
}

impl ModelledDisk {
    /// Returns a disk over `files`, which must complete requests at once (`DiskKind::Sync`).
    pub(crate) fn new(files: Box<dyn Disk>, model: DiskModel) -> Self {
        Self { files, model, busy_until: Instant::ZERO, waiting: VecDeque::new() }
    }

    /// Submits a request. The synchronous disk below is never full.
    pub(crate) fn submit(&mut self, now: Instant, request: DiskRequest) {
        if self.files.submit(request).is_err() {
            debug_assert!(false, "a synchronous disk is never full");
        }
        self.files.flush();
        while let Some(completion) = self.files.poll() {
            let bytes = match &completion {
                DiskCompletion::Read { buf, .. } | DiskCompletion::Written { buf, .. } => {
                    buf.len() as u64
                }
                DiskCompletion::Opened { .. }
                | DiskCompletion::Flushed { .. }
                | DiskCompletion::Published { .. }
                | DiskCompletion::Zeroed { .. } => 0,
            };
            let service =
                Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.model.bytes_per_s);
            self.busy_until = self.busy_until.max(now) + service;
            self.waiting.push_back((self.busy_until + self.model.latency, completion));
        }
    }

    /// Returns the next completion that is due.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.waiting.pop_front().map(|(_, completion)| completion)
    }

    /// Returns the time at which the next completion is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|(at, _)| *at)
    }
}
