//! Threads that encrypt and decrypt beside a device thread.
//!
//! [`CryptoThreads`] is the implementation of [`nic::CryptoWorkers`] with threads. Each thread has
//! a ring of jobs and a ring of jobs that have ended, so that each ring has one producer and one
//! consumer. A job goes to the thread with the fewest jobs; with few jobs per thread, the last one
//! to finish delays the device by little. A thread sleeps after a while without a job.
//!
//! A job that panics comes back incomplete, and the device repeats it. Dropping the value ends the
//! threads and waits for them. Decides nothing about packets: jobs are opaque here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use abi::ring::{RingConsumer, RingProducer, RingWaker, ring};
use base::{Duration, Instant};
use cli::Failure;
use io::clock::MonotonicClock;
use nic::{CryptoJob, CryptoWorkers};

use super::spawn;

/// Jobs of a thread: one that runs, and others that wait for it while the device is busy.
const JOBS_MAX: usize = 4;
/// Polls between which a waiting thread offers its core to other threads and reads the clock.
const POLLS_PER_YIELD: u32 = 64;
/// Time after which a thread without a job sleeps. Longer than a busy device's turn, since waking a
/// thread takes longer than a job.
const IDLE_TIME_MAX: Duration = Duration::from_micros(300);

/// Threads that run the jobs of one device.
pub struct CryptoThreads {
    threads: Vec<CryptoThread>,
}

/// The device's ends of a thread's rings.
struct CryptoThread {
    jobs: RingProducer<CryptoJob>,
    ended: RingConsumer<CryptoJob>,
    /// Number of jobs that were pushed and have not come back.
    busy: usize,
    shared: Arc<WorkerSignals>,
    /// `None` after the thread was joined.
    handle: Option<JoinHandle<()>>,
}

/// Signals from the device to a thread.
#[derive(Default)]
struct WorkerSignals {
    waker: RingWaker,
    stop: AtomicBool,
}

/// The thread's side.
struct CryptoLoop {
    jobs: RingConsumer<CryptoJob>,
    ended: RingProducer<CryptoJob>,
    shared: Arc<WorkerSignals>,
}

impl CryptoThreads {
    /// Starts `count` threads for the device of a queue.
    ///
    /// # Errors
    /// Fails if no thread is left.
    pub fn start(queue: usize, count: u8) -> Result<Self, Failure> {
        let mut threads = Vec::new();
        for index in 0..count {
            threads.push(CryptoThread::start(format!("crypto{queue}.{index}"))?);
        }
        Ok(Self { threads })
    }
}

impl CryptoThread {
    fn start(name: String) -> Result<Self, Failure> {
        let (jobs, received) = ring(JOBS_MAX);
        let (sent, ended) = ring(JOBS_MAX);
        let shared = Arc::<WorkerSignals>::default();
        let work = CryptoLoop { jobs: received, ended: sent, shared: Arc::clone(&shared) };
        let handle = Some(spawn(name, move || work.run())?);
        Ok(Self { jobs, ended, busy: 0, shared, handle })
    }

    fn poll(&mut self) -> Option<CryptoJob> {
        let job = self.ended.pop()?;
        self.busy -= 1;
        Some(job)
    }

    /// Returns whether the thread has a job that will come back.
    fn has_job(&self) -> bool {
        self.busy > 0 && self.handle.as_ref().is_some_and(|handle| !handle.is_finished())
    }

    fn wake(&self) {
        if let (true, Some(handle)) = (self.shared.waker.must_wake(), &self.handle) {
            handle.thread().unpark();
        }
    }
}

impl CryptoWorkers for CryptoThreads {
    fn workers(&self) -> usize {
        self.threads.len()
    }

    fn post(&mut self, job: CryptoJob) -> Result<(), CryptoJob> {
        let free = self.threads.iter_mut().min_by_key(|thread| thread.busy);
        // The ring for jobs that have ended has as many slots, so a thread never waits for room.
        let Some(thread) = free.filter(|thread| thread.busy < JOBS_MAX) else { return Err(job) };
        thread.jobs.push(job)?;
        thread.busy += 1;
        thread.wake();
        Ok(())
    }

    fn poll(&mut self) -> Option<CryptoJob> {
        self.threads.iter_mut().find_map(CryptoThread::poll)
    }

    fn wait(&mut self) -> Option<CryptoJob> {
        let mut polls = 0_u32;
        loop {
            // Before the check of the threads: a thread that has ended may have left a job.
            let working = self.threads.iter().any(CryptoThread::has_job);
            let job = self.poll();
            if job.is_some() || !working {
                return job;
            }
            polls = polls.wrapping_add(1);
            pause(polls);
        }
    }
}

impl Drop for CryptoThreads {
    fn drop(&mut self) {
        for thread in &self.threads {
            thread.shared.stop.store(true, Ordering::Release);
            if let Some(handle) = &thread.handle {
                handle.thread().unpark();
            }
        }
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // The panic of a job was caught, and counted by the device.
            let _ended = handle.join();
        }
    }
}

impl CryptoLoop {
    /// Runs jobs until the device has ended.
    fn run(mut self) {
        let clock = MonotonicClock::new();
        let mut polls = 0_u32;
        let mut idle_since: Option<Instant> = None;
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(job) = self.jobs.pop() {
                (polls, idle_since) = (0, None);
                self.run_job(job);
                continue;
            }
            polls = polls.wrapping_add(1);
            if pause(polls) {
                let now = clock.now();
                let since = *idle_since.get_or_insert(now);
                if now.since(since) >= IDLE_TIME_MAX {
                    self.sleep();
                    (polls, idle_since) = (0, None);
                }
            }
        }
    }

    fn run_job(&mut self, mut job: CryptoJob) {
        // A job whose run panicked is incomplete; the device does not use its memory before it has
        // repeated the job.
        let _panicked = catch_unwind(AssertUnwindSafe(|| job.run()));
        if self.ended.push(job).is_err() {
            unreachable!("as many slots as jobs");
        }
    }

    fn sleep(&mut self) {
        self.shared.waker.prepare_sleep();
        if self.jobs.is_empty() && !self.shared.stop.load(Ordering::Acquire) {
            // Wake-ups without a cause lead to another poll.
            thread::park();
        }
        self.shared.waker.mark_awake();
    }
}

/// Waits a moment after a poll in vain. Now and then another thread may use the core; returns true
/// after that.
fn pause(polls: u32) -> bool {
    let yields = polls % POLLS_PER_YIELD == 0;
    if yields {
        thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
    yields
}

impl std::fmt::Debug for CryptoThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CryptoThreads").field("threads", &self.threads.len()).finish()
    }
}
