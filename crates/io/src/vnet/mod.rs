//! Links over a descriptor whose frames have a virtio-net header: TAP, macvtap, packet sockets.
//!
//! [`crate::tap`], [`crate::macvtap`] and [`crate::packet_socket`] open the descriptor; there is
//! one [`VnetLink`] for each queue of the device. Runs of segments and partial checksums cross in
//! one system call in both directions, described by the header (`header`): runs of up to 64 KiB,
//! and to a TAP, over IPv4, up to [`crate::tap::run_bytes_max`]. A payload goes from the sender's
//! buffers to the kernel without a copy in user space. Received runs of UDP datagrams are cut here,
//! because the device decrypts QUIC datagrams one at a time.
//!
//! A packet socket receives short frames without a system call, and sends several with one
//! (`packet_queues`). A TAP takes one call for each: batches of reads and writes by io_uring were
//! not faster (decision 050).

mod header;
mod landing;
mod packet_queues;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use abi::{Checksum, PacketBuf, PacketPool};
use base::Instant;

use wire::segment::{HeaderLayout, cut_run};

use crate::link::{Link, LinkTxStatus};
use crate::netlink::CreatedInterface;
use crate::notify::{Notifier, replace_descriptor};
use crate::queue_steering::KernelSteering;
use crate::watched_link::ChangeableLink;
pub(crate) use header::{ChecksumRequest, VNET_BYTES};
use landing::LandingBuffer;
pub(crate) use packet_queues::PacketQueues;

/// `IoSlice`s of one frame that need no allocation: both headers and 62 slices of payload.
const SLICES: usize = 64;

/// Largest payload in bytes of a run without BIG TCP: a packet with the longest headers is 64 KiB.
pub const RUN_BYTES_MAX: u32 = 65_536 - 120;

base::counters! {
    /// Counters of one queue of a link to the kernel.
    pub struct VnetLinkCounters {
        /// Frames written.
        link_tx_frames,
        /// Bytes written.
        link_tx_bytes,
        /// Runs of segments written.
        link_tx_runs,
        /// Writes for which the kernel had no room.
        link_tx_full,
        /// Runs above 64 KiB for which the kernel had no memory.
        link_tx_too_long,
        /// Frames dropped because the interface was down or removed.
        link_tx_down,
        /// Frames longer than the interface's MTU, which was lowered.
        link_tx_too_big,
        /// Writes that the kernel refused: the frame is invalid.
        link_tx_errors: alarm,
        /// Frames that a virtio-net header cannot describe.
        link_tx_refused: alarm,
        /// Frames read.
        link_rx_frames,
        /// Bytes read.
        link_rx_bytes,
        /// Runs of segments read.
        link_rx_runs,
        /// Reads that failed.
        link_rx_errors: alarm,
        /// Reads without a frame, or with one that is longer than any buffer.
        link_rx_malformed: alarm,
    }
}

/// Offloads that the kernel accepts from us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkOffloads {
    /// Partial checksums, and runs of TCP segments.
    pub(crate) tcp: bool,
    /// Runs of UDP datagrams.
    pub(crate) udp: bool,
}

/// One queue of a link to the kernel, or to a network through the kernel.
#[derive(Debug)]
pub struct VnetLink {
    file: File,
    name: String,
    caps: LinkCaps,
    /// The kernel's selection of queues, at one of them; `None` at the others, and if the kernel
    /// selects by its own hash.
    steering: Option<KernelSteering>,
    /// Queues of a packet socket; `None` for a character device.
    packet_queues: Option<PacketQueues>,
    landing: LandingBuffer,
    /// Datagrams of a received run, in order.
    rx_datagrams: VecDeque<PacketBuf>,
    /// Buffer for a datagram of a run.
    rx_scratch: Vec<u8>,
    counters: VnetLinkCounters,
    /// True while frames to send are dropped.
    is_down: bool,
    /// The interface, if it ends with its last queue. Dropped after `file`.
    created: Option<Arc<CreatedInterface>>,
}

impl VnetLink {
    pub(crate) fn new(file: File, name: &str, mtu: u16, offloads: LinkOffloads) -> Self {
        let LinkOffloads { tcp, udp } = offloads;
        Self {
            file,
            name: name.to_owned(),
            caps: LinkCaps { segmentation: tcp, udp_segmentation: udp, checksum: tcp, mtu },
            steering: None,
            packet_queues: None,
            landing: LandingBuffer::default(),
            rx_datagrams: VecDeque::new(),
            rx_scratch: Vec::new(),
            counters: VnetLinkCounters::default(),
            is_down: false,
            created: None,
        }
    }

    /// Ties the life of a created interface to that of its queues.
    pub(crate) fn with_interface(self, created: Arc<CreatedInterface>) -> Self {
        Self { created: Some(created), ..self }
    }

    /// Adds the kernel's selection of queues.
    pub(crate) fn with_steering(self, steering: Option<KernelSteering>) -> Self {
        Self { steering, ..self }
    }

    /// Adds the queues of a packet socket.
    pub(crate) fn with_packet_queues(self, packet_queues: PacketQueues) -> Self {
        Self { packet_queues: Some(packet_queues), ..self }
    }

    /// Returns the name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counters of this queue.
    #[must_use]
    pub const fn counters(&self) -> &VnetLinkCounters {
        &self.counters
    }

    /// Returns the next received frame with its virtio-net header; `None` if it is malformed.
    fn read(&mut self, pool: &mut PacketPool) -> io::Result<Option<([u8; VNET_BYTES], PacketBuf)>> {
        match &mut self.packet_queues {
            Some(queues) => queues.receive(&self.file, &mut self.landing, pool),
            None => self.landing.read(&self.file, pool),
        }
    }

    /// Cuts a received run of UDP datagrams, and returns the first of them.
    fn take_datagrams(
        &mut self,
        run: &PacketBuf,
        segment_size: u16,
        pool: &mut PacketPool,
    ) -> Option<RxFrame> {
        let frame = run.as_slice();
        let layout = HeaderLayout::find(frame);
        let (datagrams, malformed) = (&mut self.rx_datagrams, &mut self.counters.link_rx_malformed);
        cut_run(frame, layout, (segment_size, true), &mut self.rx_scratch, |packet| {
            match pool.copy(packet) {
                Some(packet) => datagrams.push_back(packet),
                None => *malformed += 1,
            }
        });
        self.next_datagram()
    }

    /// Queues a frame that is sent with others by [`Link::flush`], or at once if there are many.
    fn push_to_batch(&mut self, vnet: [u8; VNET_BYTES], frame: &mut TxFrame) -> LinkTxStatus {
        let push = |link: &mut Self, frame: &mut TxFrame| {
            link.packet_queues.as_mut().is_some_and(|queues| queues.batch.push(vnet, frame))
        };
        if push(self, frame) || (self.send_batch() && push(self, frame)) {
            LinkTxStatus::Sent
        } else {
            LinkTxStatus::Full
        }
    }

    /// Sends the queued frames; returns false if the kernel has no room for some of them.
    fn send_batch(&mut self) -> bool {
        let Some(PacketQueues { batch, .. }) = &mut self.packet_queues else { return true };
        let counters = &mut self.counters;
        while !batch.is_empty() {
            if self.is_down {
                counters.link_tx_down += 1;
                batch.pop_front();
                continue;
            }
            let sent = batch.send(&self.file, |frame, vnet| counters.count_sent(frame, vnet));
            let Err(error) = sent else { continue };
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            let status = batch.front().map(|frame| counters.count_unsent(frame, &error));
            if status == Some(LinkTxStatus::Full) {
                return false;
            }
            batch.pop_front();
        }
        true
    }

    fn next_datagram(&mut self) -> Option<RxFrame> {
        let packet = self.rx_datagrams.pop_front()?;
        // The kernel has merged datagrams with a correct checksum, or has received a run whose
        // checksums were still to be computed.
        Some(RxFrame { packet, checksum: Checksum::Good, segment_size: 0 })
    }
}

impl VnetLinkCounters {
    fn count_sent(&mut self, frame: &TxFrame, vnet: [u8; VNET_BYTES]) {
        self.link_tx_frames += 1;
        self.link_tx_bytes += frame.len() as u64;
        self.link_tx_runs += u64::from(header::is_run(vnet));
    }

    /// Counts a frame that the kernel did not accept, and returns what to do with it.
    fn count_unsent(&mut self, frame: &TxFrame, error: &io::Error) -> LinkTxStatus {
        // The kernel stores a frame in at most 17 fragments, whose size depends on how fragmented
        // its memory is. It can always store 64 KiB.
        if is_long(frame) && is_no_memory(error) {
            self.link_tx_too_long += 1;
            return LinkTxStatus::TooLong;
        }
        // ENOBUFS: the queue of the interface below is full.
        if is_full(error) {
            self.link_tx_full += 1;
            return LinkTxStatus::Full;
        }
        *match error.raw_os_error() {
            _ if is_down(error) => &mut self.link_tx_down,
            Some(libc::EMSGSIZE) => &mut self.link_tx_too_big,
            _ => &mut self.link_tx_errors,
        } += 1;
        LinkTxStatus::Failed
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
    fill_slices(slices, vnet, frame);
    retry(|| file.write_vectored(slices))
}

/// Makes slices refer to a frame and its virtio-net header. There are two more than the frame has
/// payloads.
fn fill_slices<'a>(slices: &mut [IoSlice<'a>], vnet: &'a [u8], frame: &'a TxFrame) {
    slices[0] = IoSlice::new(vnet);
    slices[1] = IoSlice::new(frame.header.as_slice());
    for (slice, payload) in slices[2..].iter_mut().zip(&frame.payload) {
        *slice = IoSlice::new(payload.as_slice());
    }
}

/// Returns whether a frame is longer than an IP packet can be.
fn is_long(frame: &TxFrame) -> bool {
    frame.len() - frame.header.l3() > usize::from(u16::MAX)
}

/// Returns whether the same frame may be accepted later.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Returns whether the interface is down or removed: a packet socket's error is ENETDOWN or ENXIO,
/// that of a TAP EIO or EBADFD.
fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::EIO | libc::EBADFD))
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

impl AsRawFd for VnetLink {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Link for VnetLink {
    fn capabilities(&self) -> LinkCaps {
        self.caps
    }

    fn transmit(&mut self, _now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if self.is_down {
            self.counters.link_tx_down += 1;
            return LinkTxStatus::Failed;
        }
        let Some(vnet) = header::encode(frame) else {
            self.counters.link_tx_refused += 1;
            return LinkTxStatus::Failed;
        };
        if self.packet_queues.is_some() {
            return self.push_to_batch(vnet, frame);
        }
        match write_frame(&self.file, &vnet, frame) {
            Ok(_) => {
                self.counters.count_sent(frame, vnet);
                LinkTxStatus::Sent
            }
            Err(error) => self.counters.count_unsent(frame, &error),
        }
    }

    fn flush(&mut self, _now: Instant) -> bool {
        self.send_batch()
    }

    fn receive(&mut self, _now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if let Some(datagram) = self.next_datagram() {
            return Some(datagram);
        }
        loop {
            let (vnet, packet) = match self.read(pool) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.counters.link_rx_malformed += 1;
                    continue;
                }
                Err(error) => {
                    let idle = error.kind() == io::ErrorKind::WouldBlock || is_down(&error);
                    self.counters.link_rx_errors += u64::from(!idle);
                    return None;
                }
            };
            let (checksum, segment_size) = header::decode(vnet);
            self.counters.link_rx_frames += 1;
            self.counters.link_rx_bytes += packet.len() as u64;
            self.counters.link_rx_runs += u64::from(segment_size > 0);
            if segment_size > 0 && header::is_datagram_run(vnet) {
                let first = self.take_datagrams(&packet, segment_size, pool);
                if first.is_some() {
                    return first;
                }
                continue;
            }
            return Some(RxFrame { packet, checksum, segment_size });
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }

    fn follow_steering(&mut self, steering: &FlowSteering) {
        if let Some(kernel) = &mut self.steering {
            kernel.follow(steering);
        }
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        if let Some(queues) = &self.packet_queues {
            f("link_rx_dropped", queues.dropped(&self.file));
        }
    }
}

impl ChangeableLink for VnetLink {
    fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.caps.mtu = mtu;
    }

    fn close(&mut self, bell: &Notifier) -> io::Result<()> {
        replace_descriptor(bell, &self.file)?;
        self.rx_datagrams.clear();
        // The ring's memory would keep the old socket open.
        self.packet_queues = None;
        self.created = None;
        Ok(())
    }

    fn reopen(&mut self, new: Self) -> io::Result<()> {
        replace_descriptor(&new.file, &self.file)?;
        self.packet_queues = new.packet_queues;
        self.created = new.created;
        Ok(())
    }
}
