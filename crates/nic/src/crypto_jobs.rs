//! Crypto workers: encryption and decryption beside the device (NiQUIC section 3.3, parallel AEAD
//! modules).
//!
//! [`CryptoWorkers`] is the boundary: an implementation has threads, or runs jobs in any order in a
//! test. The device makes jobs of QUIC packets and of whole TLS records, and waits for all of them
//! before it uses the results, in its own order: [`CryptoQueue`] is the fork and the join. Used by
//! [`crate::Device`] only; a device without workers has no queue.
//!
//! Invariants: jobs own their memory; a job that no worker takes is run by the device itself; the
//! results do not depend on the number of workers or the order in which they finish.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::counters::CryptoJobCounters;
use crate::engine::quic::{QuicOpenJob, QuicSealJob};
use crate::engine::tls::TlsSealJob;

/// Output of jobs, in bytes, with which no more operations are taken until it was sent.
const PENDING_BYTES_MAX: usize = 16 << 20;

/// Means to run jobs beside the device: threads, or a model of them.
pub trait CryptoWorkers: Send {
    /// Returns the number of workers.
    fn workers(&self) -> usize;

    /// Hands a job to a worker that has room for it. The job must come back by [`Self::poll`] or
    /// [`Self::wait`] after [`CryptoJob::run`] was called, whether that returned or panicked.
    ///
    /// # Errors
    /// Returns the job if all workers are busy; the device keeps it.
    #[expect(clippy::result_large_err, reason = "the job comes back as it is")]
    fn post(&mut self, job: CryptoJob) -> Result<(), CryptoJob>;

    /// Returns a job that was run. Jobs may come back in any order.
    fn poll(&mut self) -> Option<CryptoJob>;

    /// Waits until a job was run, and returns it; `None` if no worker has one.
    fn wait(&mut self) -> Option<CryptoJob>;
}

/// Packets or records to encrypt, or packets to decrypt.
pub struct CryptoJob {
    pub(crate) work: CryptoWork,
    /// Number of the run whose payload the output is part of.
    pub(crate) run: u64,
    /// True if the work is complete.
    done: bool,
}

/// Kinds of jobs.
pub(crate) enum CryptoWork {
    SealQuic(QuicSealJob),
    SealTls(TlsSealJob),
    OpenQuic(QuicOpenJob),
}

/// Parts of a payload that jobs will yield.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingParts {
    /// Number of parts.
    pub(crate) parts: u32,
    /// Length of all of them.
    pub(crate) bytes: usize,
}

/// The device's end: jobs that wait for a worker, and those that ended.
pub(crate) struct CryptoQueue {
    workers: Box<dyn CryptoWorkers>,
    /// Jobs of the transmit that is being made.
    pub(crate) staged_quic: Vec<QuicSealJob>,
    pub(crate) staged_tls: Vec<TlsSealJob>,
    /// Jobs that no worker has taken.
    backlog: VecDeque<CryptoJob>,
    done: Vec<CryptoJob>,
    /// Number of jobs that workers have.
    posted: usize,
    /// Output of encryption jobs that was not returned yet.
    bytes: usize,
    pub(crate) counters: CryptoJobCounters,
}

impl CryptoJob {
    const fn new(work: CryptoWork, run: u64) -> Self {
        Self { work, run, done: false }
    }

    /// Does the work. If it was done already, does nothing.
    pub fn run(&mut self) {
        if self.done {
            return;
        }
        self.done = match &mut self.work {
            CryptoWork::SealQuic(job) => job.run(),
            CryptoWork::SealTls(job) => job.run(),
            CryptoWork::OpenQuic(job) => {
                job.run();
                true
            }
        };
    }

    /// Returns whether the work is complete.
    pub(crate) const fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the length of encrypted output.
    fn output_len(&self) -> usize {
        match &self.work {
            CryptoWork::SealQuic(job) => job.len(),
            CryptoWork::SealTls(job) => job.len(),
            CryptoWork::OpenQuic(_) => 0,
        }
    }
}

impl CryptoQueue {
    /// Creates the queue; `None` if there are no workers.
    pub(crate) fn new(workers: Box<dyn CryptoWorkers>) -> Option<Self> {
        let some = workers.workers() > 0;
        some.then(|| Self {
            workers,
            staged_quic: Vec::new(),
            staged_tls: Vec::new(),
            backlog: VecDeque::new(),
            done: Vec::new(),
            posted: 0,
            bytes: 0,
            counters: CryptoJobCounters::default(),
        })
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers.workers()
    }

    /// Returns whether jobs may be added.
    pub(crate) const fn has_room(&self) -> bool {
        self.bytes < PENDING_BYTES_MAX
    }

    /// Returns whether a job is waiting, running or ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.posted > 0 || !self.backlog.is_empty() || !self.done.is_empty()
    }

    /// Hands the staged jobs to workers; their output is the payload of run `run`.
    pub(crate) fn post_staged(&mut self, run: u64) -> PendingParts {
        let mut pending = PendingParts::default();
        let quic = self.staged_quic.drain(..).map(CryptoWork::SealQuic);
        for work in quic.chain(self.staged_tls.drain(..).map(CryptoWork::SealTls)) {
            let job = CryptoJob::new(work, run);
            pending.parts += 1;
            pending.bytes += job.output_len();
            self.backlog.push_back(job);
        }
        self.bytes += pending.bytes;
        self.feed();
        pending
    }

    /// Drops the staged jobs, because their transmit is not sent.
    pub(crate) fn drop_staged(&mut self) {
        self.staged_quic.clear();
        self.staged_tls.clear();
    }

    /// Hands a decryption job to workers.
    pub(crate) fn post(&mut self, job: QuicOpenJob) {
        self.backlog.push_back(CryptoJob::new(CryptoWork::OpenQuic(job), 0));
        self.feed();
    }

    /// Runs a decryption job here, because it is too short for a worker.
    pub(crate) fn run_here(&mut self, job: QuicOpenJob) {
        self.run_inline(CryptoJob::new(CryptoWork::OpenQuic(job), 0));
    }

    fn run_inline(&mut self, mut job: CryptoJob) {
        job.run();
        self.counters.crypto_jobs_inline += 1;
        self.done.push(job);
    }

    /// Takes jobs that have ended from the workers, and hands them waiting ones.
    fn feed(&mut self) {
        while let Some(job) = self.workers.poll() {
            self.take_back(job);
        }
        while let Some(job) = self.backlog.pop_front() {
            if let Err(job) = self.workers.post(job) {
                self.backlog.push_front(job);
                return;
            }
            self.posted += 1;
        }
    }

    fn take_back(&mut self, job: CryptoJob) {
        self.posted = self.posted.saturating_sub(1);
        self.counters.crypto_jobs_worker += u64::from(job.done);
        self.done.push(job);
    }

    /// Runs jobs here, beside the workers, until all have ended.
    pub(crate) fn finish(&mut self) {
        loop {
            self.feed();
            if let Some(job) = self.backlog.pop_back() {
                self.run_inline(job);
            } else if self.posted == 0 {
                return;
            } else if let Some(job) = self.workers.wait() {
                self.take_back(job);
            } else {
                self.counters.crypto_jobs_lost += self.posted as u64;
                self.posted = 0;
                return;
            }
        }
    }

    /// Returns a job that has ended. One that a worker could not complete was run again.
    pub(crate) fn poll_done(&mut self) -> Option<CryptoJob> {
        let mut job = self.done.pop()?;
        self.bytes = self.bytes.saturating_sub(job.output_len());
        if !job.is_done() {
            self.counters.crypto_jobs_failed += 1;
            // Packets of an interrupted decryption may be neither as they arrived nor decrypted.
            if !matches!(job.work, CryptoWork::OpenQuic(_)) {
                job.run();
            }
        }
        Some(job)
    }
}

impl core::fmt::Debug for CryptoQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CryptoQueue").field("posted", &self.posted).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for CryptoJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CryptoJob").field("done", &self.done).finish_non_exhaustive()
    }
}
