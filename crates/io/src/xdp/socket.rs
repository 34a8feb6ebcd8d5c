//! An AF_XDP socket: its memory (UMEM), its rings and its binding to a queue of an interface.
//!
//! Called by [`super`]. The UMEM has chunks of 4 KiB. One half of them circulates between fill ring
//! and receive ring; the other half is free, or between transmit ring and completion ring. Frames
//! are copied between chunks and the buffers of the device. With `XDP_USE_SG` (Linux 6.6) a frame
//! may have several chunks ([`super::chain`]).
//!
//! If the interface completes checksums, each frame to send has room for a request in front
//! (`struct xsk_tx_metadata`, Linux 6.11).
//!
//! Descriptors from the kernel are checked: an address outside of its half is an error, which is
//! counted by the caller.
#![expect(unsafe_code, reason = "socket, bind, and memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use abi::link::{FramePayload, TxFrame};
use abi::{PacketBuf, PacketPool};

use super::chain::{CHUNKS_PER_FRAME_MAX, ChunkResult, RxChain};
use super::ring::XskRing;
use crate::mapping::Mapping;
use crate::socket_option::{get_option, option_len, set_option};
use crate::vnet::ChecksumRequest;

/// Size of a chunk, and of a page.
const CHUNK_BYTES: usize = 4096;
/// Chunks of each direction, and entries of each ring.
const CHUNKS: u32 = 2048;
/// Bytes at the front of a chunk that the kernel keeps free on receive (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Longest frame that can be received in one chunk.
pub(super) const CHUNK_FRAME_BYTES_MAX: usize = CHUNK_BYTES - HEADROOM;
/// Longest frame that can be received in several chunks.
pub(super) const FRAME_BYTES_MAX: usize = CHUNKS_PER_FRAME_MAX * CHUNK_FRAME_BYTES_MAX;
/// Bytes in front of a frame to send, if they are registered: the size of `xsk_tx_metadata` since
/// it has a launch time (Linux 6.15). Older kernels use a part of them.
const METADATA_BYTES: usize = 24;
const _: () = assert!(METADATA_BYTES >= size_of::<libc::xsk_tx_metadata>());
/// Kernel memory for frames on their way to the interface, in copy mode.
const SEND_BUFFER_BYTES: libc::c_int = 8 << 20;
/// Frames that one system call sends in copy mode (`TX_BATCH_SIZE`).
const TX_BATCH: u32 = 32;
/// Calls per wake-up: with them the kernel can take all frames of the ring.
const KICKS_MAX: u32 = CHUNKS / TX_BATCH;
/// Time in microseconds for which the kernel may poll the driver in a system call. Any but zero
/// enables it: our calls do not wait.
const BUSY_POLL_US: libc::c_int = 20;
/// Frames that the driver takes in per poll.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// Transfer of frames between interface and UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpTransfer {
    /// By the kernel's copy, with any driver.
    Copy,
    /// By the interface itself; only with drivers that support it.
    ZeroCopy,
}

/// Options of a socket, from the configuration and the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct XskOptions {
    /// `None` to try zero-copy first.
    pub(super) transfer: Option<XdpTransfer>,
    /// Frames have one or more chunks.
    pub(super) has_fragments: bool,
    /// The process polls the driver ([`XskSocket::poll_driver`]).
    pub(super) busy_poll: bool,
    /// Frames to send can have a request for a checksum.
    pub(super) has_metadata: bool,
}

/// Result of a receive.
#[derive(Debug)]
pub(super) enum XskReceived {
    /// A frame.
    Frame(PacketBuf),
    /// A descriptor that is not valid, or a frame without buffer.
    Malformed,
    /// A frame of more chunks than a frame may have.
    TooLong,
    /// No frame.
    Empty,
}

/// Result of a transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XskSent {
    Sent,
    Full,
    /// Too long, or with a checksum that cannot be requested.
    Refused,
}

/// A socket that is bound to one queue.
#[derive(Debug)]
pub(super) struct XskSocket {
    fd: OwnedFd,
    fill: XskRing<u64>,
    completion: XskRing<u64>,
    rx: XskRing<libc::xdp_desc>,
    tx: XskRing<libc::xdp_desc>,
    umem: Mapping,
    /// Addresses of chunks of received frames for which the fill ring had no room.
    rx_free: Vec<u64>,
    /// Addresses of free chunks for transmits.
    tx_free: Vec<u64>,
    /// Bytes in front of a frame to send: none, or [`METADATA_BYTES`].
    metadata_bytes: usize,
    /// Appended to the transmit ring and not published yet.
    tx_unpublished: u32,
    rx_chain: RxChain,
    /// Completions that named no chunk of ours.
    bad_completions: u64,
}

impl XskSocket {
    /// Opens a socket with its memory, and fills the fill ring. Binding is separate.
    ///
    /// # Errors
    /// Among others `Unsupported`, if the kernel takes no metadata.
    pub(super) fn open(has_metadata: bool) -> io::Result<Self> {
        let metadata_bytes = if has_metadata { METADATA_BYTES } else { 0 };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed; the result is checked before use.
        let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let umem = Mapping::anonymous(CHUNKS as usize * 2 * CHUNK_BYTES)?;
        register(&fd, &umem, metadata_bytes)?;
        // Without the privilege the default remains: fewer frames can wait for the interface.
        let _ = set_option(&fd, (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE), &SEND_BUFFER_BYTES);
        let offsets = offsets(&fd)?;
        let page = |page: libc::off_t| u64::try_from(page).map_err(io::Error::other);
        let mut fill = XskRing::map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, CHUNKS)?;
        for chunk in 0..CHUNKS {
            let has_room = fill.push(address(chunk));
            debug_assert!(has_room, "the ring has room for each chunk");
        }
        fill.publish_produced();
        let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        Ok(Self {
            completion: XskRing::map(&fd, completion, &offsets.cr, CHUNKS)?,
            rx: XskRing::map(&fd, page(libc::XDP_PGOFF_RX_RING)?, &offsets.rx, CHUNKS)?,
            tx: XskRing::map(&fd, page(libc::XDP_PGOFF_TX_RING)?, &offsets.tx, CHUNKS)?,
            fill,
            fd,
            umem,
            rx_free: Vec::with_capacity(CHUNKS as usize),
            tx_free: (CHUNKS..2 * CHUNKS).map(address).collect(),
            metadata_bytes,
            tx_unpublished: 0,
            rx_chain: RxChain::Empty,
            bad_completions: 0,
        })
    }

    /// Binds the socket to a queue of an interface.
    pub(super) fn bind(&self, interface: u32, queue: u32, options: XskOptions) -> io::Result<()> {
        if options.busy_poll {
            for (option, value) in [
                (libc::SO_PREFER_BUSY_POLL, 1),
                (libc::SO_BUSY_POLL, BUSY_POLL_US),
                (libc::SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET),
            ] {
                set_option(&self.fd, (libc::SOL_SOCKET, option), &value)?;
            }
        }
        let mode = match options.transfer {
            None => 0,
            Some(XdpTransfer::Copy) => libc::XDP_COPY,
            Some(XdpTransfer::ZeroCopy) => libc::XDP_ZEROCOPY,
        };
        let fragments = if options.has_fragments { libc::XDP_USE_SG } else { 0 };
        let name = libc::sockaddr_xdp {
            sxdp_family: u16::try_from(libc::AF_XDP).map_err(io::Error::other)?,
            sxdp_flags: mode | fragments | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = option_len::<libc::sockaddr_xdp>();
        // SAFETY: the pointer and the length are those of `name`.
        match unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const name).cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns whether the interface accesses the memory itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        let mut options = libc::xdp_options { flags: 0 };
        get_option(&self.fd, (libc::SOL_XDP, libc::XDP_OPTIONS), &mut options).is_ok()
            && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
    }

    /// Returns the kernel's counters of this socket.
    pub(super) fn statistics(&self) -> libc::xdp_statistics {
        // SAFETY: the structure is plain data, valid as zeros.
        let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        // An older kernel fills in fewer fields.
        let _ = get_option(&self.fd, (libc::SOL_XDP, libc::XDP_STATISTICS), &mut statistics);
        statistics
    }

    /// Returns whether the kernel knows the NAPI context of the queue, which it needs to poll the
    /// driver.
    pub(super) fn has_napi_id(&self) -> bool {
        let (option, mut id) = ((libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID), 0_u32);
        get_option(&self.fd, option, &mut id).is_ok() && id > 0
    }

    pub(super) const fn bad_completions(&self) -> u64 {
        self.bad_completions
    }

    /// Copies a frame to free chunks and appends it to the transmit ring.
    pub(super) fn transmit(&mut self, frame: &TxFrame) -> XskSent {
        let count = frame.len().div_ceil(CHUNK_BYTES - self.metadata_bytes).max(1);
        let request = match frame.checksum_partial {
            true => ChecksumRequest::of(frame).filter(|_| self.metadata_bytes > 0),
            false => None,
        };
        if count > CHUNKS_PER_FRAME_MAX || request.is_some() != frame.checksum_partial {
            return XskSent::Refused;
        }
        if self.tx_free.len() < count {
            self.flush_backlog();
            self.take_completions();
        }
        if self.tx_free.len() < count || self.tx.room() < count {
            return XskSent::Full;
        }
        if count == 1 {
            frame.copy_to(self.append_chunk(frame.len(), true, request));
        } else {
            self.append_chunks(frame, request);
        }
        if self.tx_unpublished >= TX_BATCH {
            self.flush();
        }
        XskSent::Sent
    }

    /// Appends a frame of several chunks. The caller has checked that enough are free.
    fn append_chunks(&mut self, frame: &TxFrame, mut request: Option<ChecksumRequest>) {
        let payload = frame.payload.iter().map(FramePayload::as_slice);
        let chunk_room = CHUNK_BYTES - self.metadata_bytes;
        let (mut left, mut room): (_, &mut [u8]) = (frame.len(), &mut []);
        for mut piece in std::iter::once(frame.header.as_slice()).chain(payload) {
            while !piece.is_empty() {
                if room.is_empty() {
                    let len = left.min(chunk_room);
                    left -= len;
                    room = self.append_chunk(len, left == 0, request.take());
                }
                let len = piece.len().min(room.len());
                let (head, tail) = room.split_at_mut(len);
                head.copy_from_slice(&piece[..len]);
                (room, piece) = (tail, &piece[len..]);
            }
        }
    }

    /// Appends a free chunk with `len` bytes to the transmit ring, and returns its memory. It is
    /// published later. `request` is that of a frame's first chunk.
    fn append_chunk(
        &mut self,
        len: usize,
        is_last: bool,
        request: Option<ChecksumRequest>,
    ) -> &mut [u8] {
        let chunk = self.tx_free.pop().expect("the caller has counted the free chunks");
        let mut options = if is_last { 0 } else { libc::XDP_PKT_CONTD };
        if let Some(request) = request {
            options |= libc::XDP_TX_METADATA;
            let metadata = chunk_bytes(&mut self.umem, chunk, METADATA_BYTES);
            metadata.expect("free chunks lie in the memory").copy_from_slice(&metadata_of(request));
        }
        let addr = chunk + self.metadata_bytes as u64;
        let bytes = u32::try_from(len).expect("at most a chunk");
        let has_room = self.tx.push(libc::xdp_desc { addr, len: bytes, options });
        debug_assert!(has_room, "the caller has looked for room");
        self.tx_unpublished += 1;
        chunk_bytes(&mut self.umem, addr, len).expect("free chunks lie in the memory")
    }

    /// Publishes the appended frames, and makes the kernel send them if it does not by itself.
    pub(super) fn flush(&mut self) {
        if self.tx_unpublished == 0 {
            return;
        }
        self.tx_unpublished = 0;
        self.tx.publish_produced();
        for _ in 0..KICKS_MAX {
            let before = self.tx.unconsumed();
            if before == 0 || !self.tx.needs_wakeup() {
                return;
            }
            let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: no memory is passed.
            unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
            // The kernel sends a limited number of frames per call, and none if the interface has
            // no room; frames that it leaves are sent at the next flush.
            if self.tx.unconsumed() >= before {
                return;
            }
        }
    }

    /// Returns whether the transmit ring has frames that the kernel takes only in a system call:
    /// the interface was full.
    pub(super) fn has_backlog(&self) -> bool {
        self.tx.unconsumed() > 0 && self.tx.needs_wakeup()
    }

    /// Makes the kernel send frames that it left in the ring.
    pub(super) fn flush_backlog(&mut self) {
        if self.has_backlog() {
            self.tx_unpublished = self.tx_unpublished.max(1);
            self.flush();
        }
    }

    fn take_completions(&mut self) {
        while let Some(addr) = self.completion.pop() {
            let addr = chunk_of(addr);
            if addr >= address(CHUNKS) && addr < address(2 * CHUNKS) {
                self.tx_free.push(addr);
            } else {
                self.bad_completions += 1;
            }
        }
        self.completion.publish_consumed();
    }

    /// Copies the next received frame to a buffer of the pool, and returns its chunks to the
    /// kernel.
    pub(super) fn receive(&mut self, pool: &mut PacketPool) -> XskReceived {
        loop {
            let Some(descriptor) = self.rx.pop() else { return XskReceived::Empty };
            self.rx.publish_consumed();
            let (addr, len) = (descriptor.addr, descriptor.len as usize);
            let chunk = chunk_of(addr);
            let is_ours = chunk < address(CHUNKS);
            let is_last = descriptor.options & libc::XDP_PKT_CONTD == 0;
            let bytes =
                if is_ours && len > 0 { chunk_bytes(&mut self.umem, addr, len) } else { None };
            let result = self.rx_chain.push(bytes.as_deref(), is_last, pool);
            // The kernel publishes received frames before it publishes that it has taken their
            // chunks from the fill ring, which may therefore seem full.
            if is_ours && !self.fill.push(chunk) {
                self.rx_free.push(chunk);
            }
            match result {
                ChunkResult::Incomplete => {}
                ChunkResult::Frame(packet) => return XskReceived::Frame(packet),
                ChunkResult::Malformed => return XskReceived::Malformed,
                ChunkResult::TooLong => return XskReceived::TooLong,
            }
        }
    }

    /// Publishes the chunks of received frames, and wakes the driver if it waits for them.
    pub(super) fn refill(&mut self) {
        while let Some(chunk) = self.rx_free.pop() {
            if !self.fill.push(chunk) {
                self.rx_free.push(chunk);
                break;
            }
        }
        self.fill.publish_produced();
        if self.fill.needs_wakeup() {
            self.poll_driver();
        }
    }

    /// Makes the kernel poll the driver once, if the socket busy-polls; wakes the driver if it
    /// waits for chunks.
    pub(super) fn poll_driver(&self) {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        let null = std::ptr::null_mut();
        // SAFETY: no memory is passed.
        unsafe { libc::recvfrom(fd, null, 0, flags, std::ptr::null_mut(), std::ptr::null_mut()) };
    }
}

/// Returns `len` bytes of the memory at an address, `None` if they do not lie in one chunk.
fn chunk_bytes(umem: &mut Mapping, addr: u64, len: usize) -> Option<&mut [u8]> {
    let addr = usize::try_from(addr).ok()?;
    if addr % CHUNK_BYTES + len > CHUNK_BYTES || addr >= umem.len() {
        return None;
    }
    // SAFETY: the bytes lie in the mapping, whose length is a multiple of a chunk's. The kernel
    // does not access the chunk while it is in no published entry of a ring, and each chunk is in
    // at most one.
    Some(unsafe { std::slice::from_raw_parts_mut(umem.base().as_ptr().add(addr), len) })
}

/// Returns the address of a chunk by its number.
const fn address(chunk: u32) -> u64 {
    chunk as u64 * CHUNK_BYTES as u64
}

/// Returns the address of the chunk in which an address lies.
const fn chunk_of(addr: u64) -> u64 {
    addr & !(CHUNK_BYTES as u64 - 1)
}

/// Returns the metadata (`struct xsk_tx_metadata`) with a request: flags, then its fields.
fn metadata_of(request: ChecksumRequest) -> [u8; METADATA_BYTES] {
    let mut bytes = [0; METADATA_BYTES];
    bytes[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
    bytes[8..10].copy_from_slice(&request.start.to_ne_bytes());
    bytes[10..12].copy_from_slice(&request.offset.to_ne_bytes());
    bytes
}

/// Registers the memory with the socket, and creates the rings.
fn register(fd: &OwnedFd, umem: &Mapping, metadata_bytes: usize) -> io::Result<()> {
    let region = libc::xdp_umem_reg {
        addr: umem.base().as_ptr() as u64,
        len: umem.len() as u64,
        chunk_size: u32::try_from(CHUNK_BYTES).map_err(io::Error::other)?,
        headroom: 0,
        flags: if metadata_bytes > 0 { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
        tx_metadata_len: u32::try_from(metadata_bytes).map_err(io::Error::other)?,
    };
    let registered = set_option(fd, (libc::SOL_XDP, libc::XDP_UMEM_REG), &region);
    registered.map_err(|error| match error.raw_os_error() {
        // An older kernel does not know the flag.
        Some(libc::EINVAL) if metadata_bytes > 0 => io::ErrorKind::Unsupported.into(),
        _ => error,
    })?;
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        set_option(fd, (libc::SOL_XDP, ring), &CHUNKS)?;
    }
    Ok(())
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: the structure is plain data, valid as zeros.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let len = get_option(fd, (libc::SOL_XDP, libc::XDP_MMAP_OFFSETS), &mut offsets)?;
    // Before Linux 5.4 the rings have no flags, and the structure is shorter.
    if len == option_len::<libc::xdp_mmap_offsets>() {
        Ok(offsets)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of `struct xsk_tx_metadata`, which libc does not have with all of its fields.
    #[test]
    fn metadata_is_as_the_kernel_reads_it() {
        let bytes = metadata_of(ChecksumRequest { start: 34, offset: 16 });
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let request = std::mem::offset_of!(libc::xsk_tx_metadata, xsk_tx_metadata_union);
        let start = std::mem::offset_of!(libc::xsk_tx_metadata_request, csum_start);
        let offset = std::mem::offset_of!(libc::xsk_tx_metadata_request, csum_offset);
        assert_eq!(bytes[..8], 2_u64.to_ne_bytes());
        assert_eq!((word(request + start), word(request + offset)), (34, 16));
        assert_eq!(bytes[12..], [0; 12]);
    }
}
