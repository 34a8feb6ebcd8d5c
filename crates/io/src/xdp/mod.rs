//! AF_XDP: frames of an existing interface, taken before the kernel's stack sees them.
//!
//! A small program on the interface (`program`) redirects the frames of our addresses, or of our
//! ports on addresses of the kernel ([`SharedAddress`]), to sockets (`socket`), one for each
//! receive queue of the interface; the kernel receives all others. The stack has the link address
//! of the interface, so the network sees one station.
//!
//! Frames are copied between the memory of the sockets and the buffers of the device. Checksums of
//! sent frames are completed by the interface if it can ([`XdpConfig::tx_checksum`]); those of
//! received frames are verified by the device. A frame is one packet, and fits a few chunks of
//! memory, which limits the MTU.
//!
//! [`open()`] attaches the program and opens the sockets. Both end with the last queue, with the
//! interface, or with the process. [`crate::watched_link`] opens the link again if the interface is
//! back, and tells it of further receive queues.

mod attach;
mod chain;
mod fixed;
mod neighbors;
mod open;
mod ports;
mod program;
mod ring;
mod socket;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::{Checksum, PacketBuf, PacketPool};
use base::{Duration, Instant};
use wire::ETHERNET_BYTES;

pub use attach::XdpMode;
pub use fixed::{FixedProgram, FixedVerdict};
pub use open::{mtu_max, mtu_max_of_chunk, open};
pub use ports::{ListenerPorts, SharedAddress};
pub use socket::XdpTransfer;

use crate::link::{Link, LinkTxStatus};
use crate::notify::{Notifier, epoll_any_of, replace_descriptor};
use crate::watched_link::ChangeableLink;
use neighbors::{KernelNeighbors, NeighborAnswer};
use open::XdpInterface;
use socket::{XskReceived, XskSent, XskSocket};

/// Frames after which the kernel gets the chunks back, and the next socket has its turn.
const RX_BATCH: u32 = 64;
/// Interval at which frames are offered again to an interface that was full.
const BACKLOG_RETRY: Duration = Duration::from_micros(100);

/// Configuration of an AF_XDP link.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface.
    pub interface: String,
    /// Queues of the device, at least 1 and at most the receive queues of the interface. Each takes
    /// the frames of one or more queues of the interface.
    pub queues: usize,
    /// Where the program runs; `None` for the driver if it can.
    pub mode: Option<XdpMode>,
    /// Transfer of frames; `None` for zero-copy if the driver can.
    pub transfer: Option<XdpTransfer>,
    /// The device polls the driver while it works, instead of the kernel in interrupts.
    pub busy_poll: bool,
    /// The interface completes checksums, also if frames are copied: the kernel then does what the
    /// driver cannot. Without a copy it does so if the driver reports that it can, whatever this
    /// says.
    pub tx_checksum: bool,
    /// Our addresses.
    pub addrs: Vec<IpAddr>,
    /// Our part of the addresses, if they are the kernel's too.
    pub shared: Option<SharedAddress>,
}

base::counters! {
    /// Counters of one queue of an AF_XDP link.
    pub struct XdpLinkCounters {
        /// Frames sent.
        link_tx_frames,
        /// Bytes sent.
        link_tx_bytes,
        /// Frames for which there was no free memory: the interface is the bottleneck.
        link_tx_full,
        /// Frames whose checksum the interface completes.
        link_tx_checksums,
        /// Frames that are longer than the memory for a frame, or whose checksum the interface
        /// cannot complete.
        link_tx_refused: alarm,
        /// Frames dropped because the interface was down or removed.
        link_tx_down,
        /// Frames longer than the interface's MTU, which was lowered.
        link_tx_too_big,
        /// Frames received.
        link_rx_frames,
        /// Bytes received.
        link_rx_bytes,
        /// Frames with a descriptor from the kernel that named no memory of a frame.
        link_rx_malformed: alarm,
        /// Frames of more chunks than the memory for a frame has: the peer or the interface merges
        /// or does not segment.
        link_rx_too_long: alarm,
        /// Times that the device polled the driver.
        link_busy_polls,
        /// Receive queues that the interface got later, from which frames cannot be received.
        link_queues_failed: alarm,
        /// Solicitations of neighbors that the kernel's table has answered.
        link_neighbors_answered,
        /// Solicitations of neighbors that the kernel did not know yet.
        link_neighbors_unknown,
    }
}

/// The kernel's counters of sockets.
#[derive(Clone, Copy, Debug, Default)]
struct XskCounts {
    dropped: u64,
    ring_full: u64,
    fill_empty: u64,
    errors: u64,
}

/// One queue of an AF_XDP link.
#[derive(Debug)]
pub struct XdpLink {
    /// Sockets of the interface's queues `queue`, `queue + queues`, and so on; none while the
    /// interface is removed.
    sockets: Vec<XskSocket>,
    /// This queue, and the number of the link's queues.
    queue: u32,
    queues: u32,
    /// Receive queues of the interface that have a socket, of all queues of the link.
    interface_queues: u32,
    /// The socket to receive from next.
    next: usize,
    /// Frames received from it in this turn of it.
    received: u32,
    busy_poll: bool,
    /// The driver was polled in this turn.
    polled: bool,
    caps: LinkCaps,
    /// Limit of the MTU.
    mtu_max: u16,
    mac: [u8; 6],
    mode: XdpMode,
    transfer: XdpTransfer,
    /// Polls readable while a socket does. Its number is constant.
    readable: OwnedFd,
    /// Answers solicitations, if the addresses are the kernel's too.
    neighbors: Option<KernelNeighbors>,
    /// Answers that the stack has not received yet.
    answers: VecDeque<Vec<u8>>,
    /// The interface left frames in a ring: time of the next attempt.
    retry_at: Option<Instant>,
    is_down: bool,
    counters: XdpLinkCounters,
    /// Counts of sockets that were closed.
    closed: XskCounts,
    /// The interface with the program; `None` while it is removed.
    interface: Option<Arc<XdpInterface>>,
}

/// Returns a descriptor that polls readable while any of the sockets does.
fn readable(sockets: &[XskSocket]) -> io::Result<OwnedFd> {
    if let [one] = sockets {
        return one.fd().try_clone();
    }
    let fds: Vec<_> = sockets.iter().map(|socket| socket.fd().as_raw_fd()).collect();
    epoll_any_of(&fds)
}

fn transfer_of(sockets: &[XskSocket]) -> XdpTransfer {
    let is_zero_copy = sockets.iter().all(XskSocket::is_zero_copy);
    if is_zero_copy { XdpTransfer::ZeroCopy } else { XdpTransfer::Copy }
}

impl XdpLink {
    /// Returns where the program runs, and whether the interface accesses the memory of frames
    /// itself.
    #[must_use]
    pub const fn mode(&self) -> (XdpMode, XdpTransfer) {
        (self.mode, self.transfer)
    }

    /// Returns the kernel's counters of all sockets, closed ones included.
    fn kernel_counts(&self) -> XskCounts {
        self.sockets.iter().fold(self.closed, |mut sum, socket| {
            let kernel = socket.statistics();
            let invalid = kernel.rx_invalid_descs + kernel.tx_invalid_descs;
            sum.dropped += kernel.rx_dropped;
            sum.ring_full += kernel.rx_ring_full;
            sum.fill_empty += kernel.rx_fill_ring_empty_descs;
            sum.errors += invalid + socket.bad_completions();
            sum
        })
    }

    /// Closes the sockets, and leaves the interface.
    fn release(&mut self) {
        self.closed = self.kernel_counts();
        self.sockets.clear();
        (self.next, self.received, self.retry_at) = (0, 0, None);
        self.answers.clear();
        self.interface = None;
    }

    /// Returns whether the frame was a solicitation, which the kernel's table answers.
    fn answer_solicitation(&mut self, frame: &TxFrame) -> bool {
        let Some(neighbors) = &self.neighbors else { return false };
        match neighbors.answer(frame.headers()) {
            NeighborAnswer::NotAsked => return false,
            NeighborAnswer::Asked(Some(answer)) => {
                self.counters.link_neighbors_answered += 1;
                self.answers.push_back(answer);
            }
            NeighborAnswer::Asked(None) => self.counters.link_neighbors_unknown += 1,
        }
        true
    }

    /// Returns a frame of the socket whose turn it is. Without one, the turn passes on.
    fn receive_from_next(&mut self, pool: &mut PacketPool) -> Option<PacketBuf> {
        let socket = self.sockets.get_mut(self.next)?;
        while self.received < RX_BATCH {
            self.received += 1;
            match socket.receive(pool) {
                XskReceived::Frame(packet) => return Some(packet),
                XskReceived::Malformed => self.counters.link_rx_malformed += 1,
                XskReceived::TooLong => self.counters.link_rx_too_long += 1,
                XskReceived::Empty if self.busy_poll && !self.polled => {
                    self.polled = true;
                    self.counters.link_busy_polls += 1;
                    socket.refill();
                    socket.poll_driver();
                }
                XskReceived::Empty => break,
            }
        }
        socket.refill();
        (self.received, self.polled) = (0, false);
        self.next = (self.next + 1) % self.sockets.len();
        None
    }
}

impl Link for XdpLink {
    fn capabilities(&self) -> LinkCaps {
        self.caps
    }

    fn transmit(&mut self, _now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if self.is_down {
            self.counters.link_tx_down += 1;
            return LinkTxStatus::Failed;
        }
        if self.answer_solicitation(frame) {
            return LinkTxStatus::Sent;
        }
        if frame.len() > usize::from(self.caps.mtu) + ETHERNET_BYTES {
            self.counters.link_tx_too_big += 1;
            return LinkTxStatus::Failed;
        }
        let sent = self.sockets.first_mut().map_or(XskSent::Refused, |s| s.transmit(frame));
        match sent {
            XskSent::Sent => {
                self.counters.link_tx_frames += 1;
                self.counters.link_tx_bytes += frame.len() as u64;
                self.counters.link_tx_checksums += u64::from(frame.checksum_partial);
                LinkTxStatus::Sent
            }
            XskSent::Full => {
                self.counters.link_tx_full += 1;
                LinkTxStatus::Full
            }
            XskSent::Refused => {
                self.counters.link_tx_refused += 1;
                LinkTxStatus::Failed
            }
        }
    }

    fn flush(&mut self, now: Instant) -> bool {
        if self.is_down {
            return true;
        }
        let is_due = self.retry_at.is_none_or(|at| at <= now);
        let mut backlog = false;
        for socket in &mut self.sockets {
            socket.flush();
            if is_due {
                socket.flush_backlog();
            }
            backlog |= socket.has_backlog();
        }
        self.retry_at = match (backlog, is_due) {
            (false, _) => None,
            (true, true) => Some(now + BACKLOG_RETRY),
            (true, false) => self.retry_at,
        };
        self.retry_at.is_none()
    }

    fn receive(&mut self, _now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if let Some(answer) = self.answers.pop_front() {
            return neighbors::received(&answer, pool);
        }
        // Each socket is asked once more after the last one was full.
        for _ in 0..=self.sockets.len() {
            if let Some(packet) = self.receive_from_next(pool) {
                self.counters.link_rx_frames += 1;
                self.counters.link_rx_bytes += packet.len() as u64;
                return Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 });
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.readable.as_raw_fd())
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        Some(self.mac)
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        let XskCounts { dropped, ring_full, fill_empty, errors } = self.kernel_counts();
        f("link_rx_dropped", dropped);
        f("link_rx_ring_full", ring_full);
        f("link_rx_fill_empty", fill_empty);
        f("link_tx_errors", errors);
        f("link_xdp_native", u64::from(self.mode == XdpMode::Native));
        let napi_ids = self.sockets.iter().filter(|socket| socket.has_napi_id()).count();
        f("link_xdp_napi_ids", napi_ids as u64);
        f("link_xdp_zero_copy", u64::from(self.transfer == XdpTransfer::ZeroCopy));
        f("link_xdp_tx_checksum", u64::from(self.caps.checksum));
    }
}

impl ChangeableLink for XdpLink {
    fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
        if is_down {
            // Frames in a ring are sent when the interface is up again.
            self.retry_at = None;
        }
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.caps.mtu = mtu.min(self.mtu_max);
    }

    fn mtu_max(&self) -> u16 {
        self.mtu_max
    }

    /// Opens sockets for further queues of the interface: the program drops our frames on a queue
    /// without one. The kernel does not remove a queue that has a socket.
    fn set_receive_queues(&mut self, count: u32) {
        let Some(interface) = &self.interface else { return };
        let more = self.interface_queues..count;
        if more.is_empty() {
            return;
        }
        self.interface_queues = self.interface_queues.max(count);
        for queue in more.filter(|queue| queue % self.queues == self.queue) {
            match interface.open_socket(queue) {
                Ok(socket) => self.sockets.push(socket),
                Err(_) => self.counters.link_queues_failed += 1,
            }
        }
        if self.queue == 0 && interface.renew_program().is_err() {
            self.counters.link_queues_failed += 1;
        }
        let replaced =
            readable(&self.sockets).and_then(|fd| replace_descriptor(&fd, &self.readable));
        self.counters.link_queues_failed += u64::from(replaced.is_err());
    }

    fn close(&mut self, bell: &Notifier) -> io::Result<()> {
        replace_descriptor(bell, &self.readable)?;
        self.release();
        Ok(())
    }

    fn reopen(&mut self, new: Self) -> io::Result<()> {
        if self.caps.checksum && !new.caps.checksum {
            return Err(io::Error::other("it no longer completes checksums"));
        }
        replace_descriptor(&new.readable, &self.readable)?;
        self.release();
        self.sockets = new.sockets;
        self.interface_queues = new.interface_queues;
        self.mtu_max = new.mtu_max;
        (self.mode, self.transfer) = (new.mode, new.transfer);
        // The device keeps its link address.
        self.neighbors = new.neighbors.map(|neighbors| neighbors.with_address(self.mac));
        self.interface = new.interface;
        Ok(())
    }
}
