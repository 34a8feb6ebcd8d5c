//! A disk for accounted benchmarks: real files, read at once, completed after a modelled time.
//!
//! The read's own cycles fall to whoever submits it; the time that a real disk would take passes on
//! the virtual clock: a fixed latency, and a rate at which requests follow each other.

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use base::{Duration, Instant};
use io::disk::Disk;

/// What the modelled disk is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskModel {
    /// From the moment that a request is served to its completion.
    pub(crate) latency: Duration,
    /// Bytes per second; requests queue for it.
    pub(crate) bytes_per_s: u64,
}

/// A disk on the virtual clock.
pub(crate) struct ModelledDisk {
    files: Box<dyn Disk>,
    model: DiskModel,
    busy_until: Instant,
    /// Completions, and when they come: requests are served one after the other, each as late.
    waiting: VecDeque<(Instant, DiskCompletion)>,
}

impl ModelledDisk {
    /// `files` has to complete what it is given at once: `DiskKind::Sync`.
    pub(crate) fn new(files: Box<dyn Disk>, model: DiskModel) -> Self {
        Self { files, model, busy_until: Instant::ZERO, waiting: VecDeque::new() }
    }

    /// Takes a request. The synchronous disk below is never full.
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
                | DiskCompletion::Zeroed { .. } => 0,
            };
            let service =
                Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.model.bytes_per_s);
            self.busy_until = self.busy_until.max(now) + service;
            self.waiting.push_back((self.busy_until + self.model.latency, completion));
        }
    }

    /// The next completion whose time has come.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.waiting.pop_front().map(|(_, completion)| completion)
    }

    /// When the next one's comes.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|(at, _)| *at)
    }
}
