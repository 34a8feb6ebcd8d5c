//! Crypto workers of a device: frames whose packets they decrypt, and runs whose payload they
//! encrypt.
//!
//! *Receive.* A frame whose QUIC packet a worker has, and all frames after it, are held until
//! every job has ended; then they are processed in the order of arrival, with the times of their
//! arrival. [`Device::settle`] is called before any other input or output of the device, so that
//! everything else happens after the frames that were handed in before it, as without workers.
//!
//! *Transmit.* A run takes its place in the queue for the link at once, with empty parts in its
//! payload. [`Device::complete_runs`] fills them before the next frame is polled.

use abi::PacketBuf;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Instant, internal_error};

use super::Device;
use crate::crypto_jobs::{CryptoJob, CryptoQueue, CryptoWork, CryptoWorkers};
use crate::engine::quic::{QuicOpenJob, QuicOpenPacket};
use crate::pipeline::rx::ParsedRxFrame;

/// Maximum number of frames that wait for workers: the batch of a driver.
const HELD_FRAMES_MAX: usize = 64;
/// Packets of a decryption job.
const OPEN_PACKETS_MAX: usize = 8;

/// Received frames that wait for workers.
#[derive(Default)]
pub(super) struct HeldFrames {
    frames: Vec<HeldFrame>,
    /// Number of the set of frames, by which late results are recognized.
    batch: u64,
    /// Packets of the next job.
    collected: QuicOpenJob,
    /// Jobs to reuse.
    spare: Vec<QuicOpenJob>,
}

struct HeldFrame {
    arrived_at: Instant,
    frame: ParsedRxFrame,
    state: HeldState,
}

enum HeldState {
    /// The frame is complete.
    Complete,
    /// A job has the packet.
    Opening,
    /// The packet came back.
    Opened(QuicOpenPacket),
}

impl Device {
    /// Sets the workers for encryption and decryption. To be called before its first input.
    #[must_use]
    pub fn with_crypto_workers(mut self, workers: Box<dyn CryptoWorkers>) -> Self {
        self.crypto = CryptoQueue::new(workers);
        self
    }

    /// Holds a frame if workers are to decrypt its packet, or if an earlier one is held; otherwise
    /// processes it.
    pub(super) fn handle_with_workers(&mut self, now: Instant, mut frame: ParsedRxFrame) {
        let index = self.held.frames.len();
        let prepared = self
            .engines
            .quic
            .as_ref()
            .and_then(|quic| quic.prepare(&mut frame.received, &frame.transport, index));
        let state = match prepared {
            None if index == 0 => return self.handle_parsed(now, frame),
            None => HeldState::Complete,
            Some(packet) => {
                self.held.collected.packets.push(packet);
                HeldState::Opening
            }
        };
        self.held.frames.push(HeldFrame { arrived_at: now, frame, state });
        if self.held.collected.packets.len() == OPEN_PACKETS_MAX {
            let job = self.held.next_job();
            if let Some(crypto) = &mut self.crypto {
                crypto.post(job);
            }
        }
        if self.held.frames.len() >= HELD_FRAMES_MAX {
            self.settle();
        }
    }

    /// Processes the frames that wait for workers.
    #[inline]
    pub(super) fn settle(&mut self) {
        if !self.held.frames.is_empty() {
            self.process_held();
        }
    }

    fn process_held(&mut self) {
        if let (Some(crypto), false) = (&mut self.crypto, self.held.collected.packets.is_empty()) {
            crypto.run_here(self.held.next_job());
        }
        self.finish_jobs();
        self.held.batch += 1;
        let mut frames = core::mem::take(&mut self.held.frames);
        for HeldFrame { arrived_at, mut frame, state } in frames.drain(..) {
            match (state, &mut self.engines.quic) {
                (HeldState::Opened(packet), Some(quic)) if packet.has_ended() => {
                    quic.put_back(&mut frame.received, packet);
                }
                (HeldState::Opened(packet), _) => {
                    self.drop_held(packet.into_packet());
                    continue;
                }
                (HeldState::Opening, _) => {
                    self.drop_held(PacketBuf::empty());
                    continue;
                }
                (HeldState::Complete, _) => {}
            }
            self.handle_parsed(arrived_at, frame);
        }
        self.held.frames = frames;
    }

    /// Drops a frame whose packet was lost by a worker, like a frame that the link lost.
    fn drop_held(&mut self, packet: PacketBuf) {
        self.egress.recycle(packet);
        if let Some(crypto) = &mut self.crypto {
            crypto.counters.crypto_frames_lost += 1;
        }
    }

    /// Completes the payloads of all runs. To be called before a frame is taken from the queue.
    #[inline]
    pub(super) fn complete_runs(&mut self) {
        if self.crypto.as_ref().is_some_and(CryptoQueue::is_busy) {
            self.finish_jobs();
        }
        // A run without its payload is like one that the link lost: the host retransmits it.
        while self.egress.runs.drop_incomplete() {
            if let Some(crypto) = &mut self.crypto {
                crypto.counters.crypto_runs_lost += 1;
            }
        }
    }

    /// Waits for all jobs, and takes their results.
    fn finish_jobs(&mut self) {
        if let Some(crypto) = &mut self.crypto {
            crypto.finish();
        }
        while let Some(job) = self.crypto.as_mut().and_then(CryptoQueue::poll_done) {
            self.take_result(job);
        }
    }

    fn take_result(&mut self, job: CryptoJob) {
        let (run, done) = (job.run, job.is_done());
        let (part, payload) = match job.work {
            CryptoWork::OpenQuic(job) => return self.held.take_opened(job),
            _ if !done => {
                let counter = &mut self.egress.internal.nic_internal_errors;
                internal_error!(*counter, "an encryption that was checked has failed");
                return;
            }
            CryptoWork::SealQuic(job) => {
                if let Some(quic) = &mut self.engines.quic {
                    quic.on_sealed(&job);
                }
                job.into_part()
            }
            CryptoWork::SealTls(job) => {
                if let Some(l5o) = &mut self.engines.l5o {
                    l5o.on_sealed(&job);
                }
                job.into_part()
            }
        };
        self.egress.runs.fill(run, part, payload);
    }

    /// Drops the frames that wait for workers, and the results of all jobs.
    pub(super) fn discard_jobs(&mut self) {
        if let Some(crypto) = &mut self.crypto {
            crypto.finish();
            while crypto.poll_done().is_some() {}
        }
        self.held.batch += 1;
        self.held.collected.packets.clear();
        for held in self.held.frames.drain(..) {
            self.egress.recycle(held.frame.received.packet);
        }
    }
}

impl HeldFrames {
    /// Returns the collected packets as a job.
    fn next_job(&mut self) -> QuicOpenJob {
        let spare = self.spare.pop().unwrap_or_default();
        let mut job = core::mem::replace(&mut self.collected, spare);
        job.batch = self.batch;
        job
    }

    /// Returns packets to their frames.
    fn take_opened(&mut self, mut job: QuicOpenJob) {
        let current = job.batch == self.batch;
        for packet in job.packets.drain(..).filter(|_| current) {
            if let Some(held) = self.frames.get_mut(packet.frame) {
                held.state = HeldState::Opened(packet);
            }
        }
        self.spare.push(job);
    }
}
