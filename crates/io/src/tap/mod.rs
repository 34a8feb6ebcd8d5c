//! Linux TAP interface: a link to the kernel's network stack.
//!
//! There is one [`Tap`] for each queue of the device. Runs of segments and partial checksums cross
//! in one system call in both directions, described by a virtio-net header (`vnet`): runs of up to
//! 64 KiB, and to the kernel, over IPv4, up to [`run_bytes_max`]. A payload goes from the sender's
//! buffers to the kernel without a copy in user space. `setup` opens and configures the interface,
//! once.
//!
//! The kernel's end answers ARP and neighbor discovery for its own addresses; the host stack does
//! so for ours.

mod error;
mod netlink;
mod setup;
mod vnet;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::{PacketBuf, PacketPool};
use base::Instant;

pub use error::TapError;
pub use setup::{IpPrefix, TapConfig, run_bytes_max};

use crate::link::{Link, LinkTxStatus};
use vnet::VNET_BYTES;

/// `IoSlice`s of one frame that need no allocation: both headers and 62 slices of payload.
const SLICES: usize = 64;
/// Received frames longer than this keep their buffer; shorter ones are copied to a buffer of their
/// size.
const KEEP_BYTES: usize = 2048;

base::counters! {
    /// Counters of one queue of a TAP.
    pub struct TapCounters {
        /// Frames written.
        tap_tx_frames,
        /// Bytes written.
        tap_tx_bytes,
        /// Runs of segments written.
        tap_tx_runs,
        /// Writes for which the kernel had no room.
        tap_tx_full,
        /// Runs above 64 KiB for which the kernel had no memory.
        tap_tx_too_long,
        /// Writes that the kernel refused: the interface is down, or the frame is invalid.
        tap_tx_errors: alarm,
        /// Frames that a virtio-net header cannot describe.
        tap_tx_refused: alarm,
        /// Frames read.
        tap_rx_frames,
        /// Bytes read.
        tap_rx_bytes,
        /// Runs of segments read.
        tap_rx_runs,
        /// Reads that failed.
        tap_rx_errors: alarm,
        /// Reads without a frame, or with one that is longer than any buffer.
        tap_rx_malformed: alarm,
    }
}

/// Offloads that the kernel accepts from us.
#[derive(Clone, Copy, Debug)]
struct TapOffloads {
    /// Partial checksums, and runs of TCP segments.
    tcp: bool,
    /// Runs of UDP datagrams.
    udp: bool,
}

/// One queue of a TAP interface.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    caps: LinkCaps,
    /// Buffer of the largest size, for the next frame.
    rx_buffer: Option<PacketBuf>,
    counters: TapCounters,
}

impl Tap {
    /// Opens the interface, creates it if it does not exist, assigns addresses to the kernel's end
    /// and brings it up. Returns one link for each queue; a created interface is removed with the
    /// last of them.
    ///
    /// # Errors
    /// As [`TapError`] lists them. An interface that was created is removed again.
    pub fn open(config: &TapConfig) -> Result<Vec<Self>, TapError> {
        setup::open(config)
    }

    fn new(file: File, name: &str, mtu: u16, offloads: TapOffloads) -> Self {
        let TapOffloads { tcp, udp } = offloads;
        let caps = LinkCaps { segmentation: tcp, udp_segmentation: udp, checksum: tcp, mtu };
        let (name, counters) = (name.to_owned(), TapCounters::default());
        Self { file, name, caps, rx_buffer: None, counters }
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counters of this queue.
    #[must_use]
    pub const fn counters(&self) -> &TapCounters {
        &self.counters
    }

    /// Reads one frame into the landing buffer. Returns its virtio-net header, and the length of
    /// both.
    fn read(&mut self, pool: &mut PacketPool) -> io::Result<([u8; VNET_BYTES], usize)> {
        let landing = match &mut self.rx_buffer {
            Some(landing) => landing,
            none => match pool.take(PacketPool::FRAME_BYTES_MAX) {
                Some(buffer) => none.insert(buffer),
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
        };
        let mut vnet = [0; VNET_BYTES];
        let mut slices = [IoSliceMut::new(&mut vnet), IoSliceMut::new(landing.as_mut_slice())];
        let len = retry(|| (&self.file).read_vectored(&mut slices))?;
        Ok((vnet, len))
    }

    /// Removes the frame of `len` bytes from the landing buffer, or copies it if it is short.
    fn take_received(&mut self, len: usize, pool: &mut PacketPool) -> Option<PacketBuf> {
        if len <= KEEP_BYTES {
            return pool.copy(&self.rx_buffer.as_ref()?.as_slice()[..len]);
        }
        let mut packet = self.rx_buffer.take()?;
        packet.truncate(len);
        Some(packet)
    }
}

fn write_frame(mut file: &File, vnet: &[u8], frame: &TxFrame) -> io::Result<usize> {
    let mut few = [IoSlice::new(&[]); SLICES];
    let mut many;
    let count = frame.payload.len() + 2;
    let slices = match few.get_mut(..count) {
        Some(slices) => slices,
        None => {
            many = vec![IoSlice::new(&[]); count];
            &mut many[..]
        }
    };
    slices[0] = IoSlice::new(vnet);
    slices[1] = IoSlice::new(frame.header.as_slice());
    for (slice, payload) in slices[2..].iter_mut().zip(&frame.payload) {
        *slice = IoSlice::new(payload.as_slice());
    }
    retry(|| file.write_vectored(slices))
}

/// Returns whether a frame is longer than an IP packet can be.
fn is_long(frame: &TxFrame) -> bool {
    frame.len() - frame.header.l3() > usize::from(u16::MAX)
}

fn is_no_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EMSGSIZE))
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Link for Tap {
    fn capabilities(&self) -> LinkCaps {
        self.caps
    }

    fn transmit(&mut self, _now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let Some(vnet) = vnet::encode(frame) else {
            self.counters.tap_tx_refused += 1;
            return LinkTxStatus::Failed;
        };
        match write_frame(&self.file, &vnet, frame) {
            Ok(_) => {
                self.counters.tap_tx_frames += 1;
                self.counters.tap_tx_bytes += frame.len() as u64;
                self.counters.tap_tx_runs += u64::from(vnet::is_run(vnet));
                LinkTxStatus::Sent
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.tap_tx_full += 1;
                LinkTxStatus::Full
            }
            // The kernel stores a frame in at most 17 fragments, whose size depends on how
            // fragmented its memory is. It can always store 64 KiB.
            Err(error) if is_long(frame) && is_no_memory(&error) => {
                self.counters.tap_tx_too_long += 1;
                LinkTxStatus::TooLong
            }
            Err(_) => {
                self.counters.tap_tx_errors += 1;
                LinkTxStatus::Failed
            }
        }
    }

    fn receive(&mut self, _now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        loop {
            let (vnet, len) = match self.read(pool) {
                Ok(got) => got,
                Err(error) => {
                    let idle = error.kind() == io::ErrorKind::WouldBlock;
                    self.counters.tap_rx_errors += u64::from(!idle);
                    return None;
                }
            };
            // A read that fills the buffer may have been truncated.
            let len = len.checked_sub(VNET_BYTES).filter(|&n| n < PacketPool::FRAME_BYTES_MAX);
            let packet = len.filter(|&n| n > 0).and_then(|n| self.take_received(n, pool));
            let Some(packet) = packet else {
                self.counters.tap_rx_malformed += 1;
                continue;
            };
            let (checksum, segment_size) = vnet::decode(vnet);
            self.counters.tap_rx_frames += 1;
            self.counters.tap_rx_bytes += packet.len() as u64;
            self.counters.tap_rx_runs += u64::from(segment_size > 0);
            return Some(RxFrame { packet, checksum, segment_size });
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
    }
}
