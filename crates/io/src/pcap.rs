//! A link that writes its traffic to a pcapng file, for Wireshark and tcpdump.
//!
//! For `--pcap`. The capture shows packets as they would be on a cable: runs are segmented and
//! partial checksums completed ([`wire::segment`]), since readers of captures do not accept frames
//! longer than packets. Outside [`crate::fault`] it shows what the device sent; inside, what really
//! left.
//!
//! The `pcap-file` crate writes the blocks. It takes a packet as one slice, so each frame is
//! gathered in a reused buffer; it allocates four bytes of options per packet, which is acceptable
//! for a capture. A write error ends the capture, is printed once and counted, and never affects
//! the traffic.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::path::Path;

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use abi::{Checksum, PacketPool};
use base::{Duration, Instant};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use crate::link::{Link, LinkTxStatus};
use wire::segment::{HeaderLayout, cut_run};

base::counters! {
    /// Counters of a capture.
    pub struct PcapCounters {
        /// Packets written.
        pcap_packets,
        /// Write errors; the first ends the capture.
        pcap_errors,
    }
}

/// Interval after which buffered packets are written at the next call, so that a growing file can
/// be watched.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
const BUFFER_BYTES: usize = 256 * 1024;
/// Longest packet that tshark reads (Wireshark's `WTAP_MAX_PACKET_SIZE_STANDARD`). Only a frame
/// that could not be segmented can be longer.
const PACKET_BYTES_MAX: usize = 262_144;
/// `if_tsresol`: time stamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Direction of a packet, as in the flags word of an enhanced packet block (pcapng section 4.3.1,
/// bits 0 and 1).
#[derive(Clone, Copy)]
enum PcapDirection {
    In = 1,
    Out = 2,
}

/// A link whose traffic is captured.
pub struct PcapLink<W> {
    inner: W,
    file: Option<PcapNgWriter<BufWriter<Box<dyn Write + Send>>>>,
    unix_epoch: Duration,
    /// The frame being written, contiguous.
    scratch: Vec<u8>,
    /// A packet of the frame.
    packet: Vec<u8>,
    last_flush: Instant,
    counters: PcapCounters,
}

impl<W: Link> PcapLink<W> {
    /// Captures `inner` to a new file at `path`, which is overwritten if it exists. `interface` is
    /// the name that readers show; `unix_epoch` is the time since 1970 at the epoch of the link's
    /// `now`.
    ///
    /// # Errors
    /// If the file cannot be created or written.
    pub fn create(
        inner: W,
        path: &Path,
        interface: &str,
        unix_epoch: Duration,
    ) -> io::Result<Self> {
        Self::new(inner, Box::new(File::create(path)?), interface, unix_epoch)
    }

    /// Like [`Self::create`], with any writer.
    ///
    /// # Errors
    /// If the file header cannot be written.
    pub fn new(
        inner: W,
        out: Box<dyn Write + Send>,
        interface: &str,
        unix_epoch: Duration,
    ) -> io::Result<Self> {
        let mut file = PcapNgWriter::new(BufWriter::with_capacity(BUFFER_BYTES, out))
            .map_err(into_io_error)?;
        let description = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        file.write_pcapng_block(description).map_err(into_io_error)?;
        file.get_mut().flush()?;
        Ok(Self {
            inner,
            file: Some(file),
            unix_epoch,
            scratch: Vec::new(),
            packet: Vec::new(),
            last_flush: Instant::ZERO,
            counters: PcapCounters::default(),
        })
    }

    /// Returns the counters of the capture.
    #[must_use]
    pub const fn counters(&self) -> &PcapCounters {
        &self.counters
    }

    /// Writes the frame in `scratch`, packet by packet. `run` is its segment size (0 if it is one
    /// packet), and whether its checksum is partial.
    fn write(
        &mut self,
        now: Instant,
        direction: PcapDirection,
        layout: Option<HeaderLayout>,
        run: (u16, bool),
    ) {
        let Some(file) = &mut self.file else { return };
        let timestamp = (self.unix_epoch + now.since(Instant::ZERO)).as_nanos();
        let mut result = Ok(());
        cut_run(&self.scratch, layout, run, &mut self.packet, |packet| {
            if result.is_err() {
                return;
            }
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: std::time::Duration::from_nanos(timestamp),
                original_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
                data: Cow::Borrowed(packet.get(..PACKET_BYTES_MAX).unwrap_or(packet)),
                options: vec![EnhancedPacketOption::Flags(direction as u32)],
            };
            result = file.write_pcapng_block(block).map(|_| self.counters.pcap_packets += 1);
        });
        if let Err(error) = result {
            self.fail(&into_io_error(error));
        }
        self.flush_if_due(now);
    }

    fn flush_if_due(&mut self, now: Instant) {
        if now.since(self.last_flush) < FLUSH_EVERY {
            return;
        }
        self.last_flush = now;
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.get_mut().flush() {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        eprintln!("outboard: cannot write capture, stopping it: {error}");
        self.counters.pcap_errors += 1;
        if let Some(file) = self.file.take() {
            // Taken apart, so that its drop does not try to write the buffered data again.
            drop(file.into_inner().into_parts());
        }
    }
}

impl<W> Drop for PcapLink<W> {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.get_mut().flush()) {
            eprintln!("outboard: cannot write end of capture: {error}");
        }
    }
}

fn into_io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl<W: Link> Link for PcapLink<W> {
    fn capabilities(&self) -> LinkCaps {
        self.inner.capabilities()
    }

    fn changes(&self) -> u32 {
        self.inner.changes()
    }

    fn pollable_changes(&self) -> Option<RawFd> {
        self.inner.pollable_changes()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if self.file.is_none() {
            return self.inner.transmit(now, frame);
        }
        // Copied first: the link may keep the payload.
        self.scratch.resize(frame.len(), 0);
        frame.copy_to(&mut self.scratch);
        let layout = HeaderLayout::of(&self.scratch, frame.header.l3(), frame.header.l4());
        let run = (frame.segment_size, frame.checksum_partial);
        let status = self.inner.transmit(now, frame);
        if status == LinkTxStatus::Sent {
            self.write(now, PcapDirection::Out, layout, run);
        }
        status
    }

    fn flush(&mut self, now: Instant) -> bool {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        let Some(frame) = self.inner.receive(now, pool) else {
            self.flush_if_due(now);
            return None;
        };
        if self.file.is_some() {
            self.scratch.clear();
            self.scratch.extend_from_slice(frame.packet.as_slice());
            let run = (frame.segment_size, frame.checksum == Checksum::Partial);
            self.write(now, PcapDirection::In, HeaderLayout::find(&self.scratch), run);
        }
        Some(frame)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn pollable(&self) -> Option<RawFd> {
        self.inner.pollable()
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        self.inner.link_address()
    }

    fn follow_steering(&mut self, steering: &FlowSteering) {
        self.inner.follow_steering(steering);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.inner.visit(f);
        self.counters.visit(f);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::memory_link::{MemoryLinkConfig, memory_link_pair};
    use crate::test_frames::{bytes_of, frame, nonzero};

    /// Accepts this many bytes, then is full.
    struct LimitedWriter(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for LimitedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap();
            if all.len() + bytes.len() > self.1 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn both_directions_read_back_with_real_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wire.pcapng");
        let (a, mut b) = memory_link_pair(&MemoryLinkConfig::default());
        let epoch = Duration::from_secs(1_700_000_000);
        let mut link = PcapLink::create(a, &path, "ob0", epoch).unwrap();
        let mut pool = PacketPool::new(4);
        let (t1, t2) = (Instant::from_nanos(5), Instant::from_nanos(1_000_000_007));
        // The first packet needs three bytes of padding, the second none.
        assert_eq!(link.transmit(t1, &mut frame(b"out")), LinkTxStatus::Sent);
        assert_eq!(b.transmit(t2, &mut frame(&[9; 3000][..1446])), LinkTxStatus::Sent);
        assert!(link.receive(t2, &mut pool).is_some());
        assert!(link.receive(t2, &mut pool).is_none());
        assert_eq!(nonzero(|f| link.counters().visit(f)), [("pcap_packets", 2)]);
        drop(link);

        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(p) = block.unwrap().into_owned() {
                packets.push((p.timestamp.as_nanos(), p.options, p.data.into_owned()));
            }
        }
        let flags = |f| vec![EnhancedPacketOption::Flags(f)];
        let nanos = |n: u128| 1_700_000_000_000_000_000 + n;
        assert_eq!(packets[0], (nanos(5), flags(2), bytes_of(&frame(b"out"))));
        let second = bytes_of(&frame(&[9; 1446]));
        assert_eq!(packets[1], (nanos(1_000_000_007), flags(1), second));
        assert_eq!(packets.len(), 2);
        let options = &reader.interfaces()[0].options;
        assert!(options.contains(&InterfaceDescriptionOption::IfName(Cow::Borrowed("ob0"))));
        assert!(options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
    }

    #[test]
    fn refused_frames_are_not_captured() {
        let (a, _b) =
            memory_link_pair(&MemoryLinkConfig { frames_max: 1, ..MemoryLinkConfig::default() });
        let out = Box::new(io::sink());
        let mut link = PcapLink::new(a, out, "ob0", Duration::ZERO).unwrap();
        assert_eq!(link.transmit(Instant::ZERO, &mut frame(b"1")), LinkTxStatus::Sent);
        assert_eq!(link.transmit(Instant::ZERO, &mut frame(b"2")), LinkTxStatus::Full);
        assert_eq!(link.counters().pcap_packets, 1);
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_traffic() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let (a, mut b) = memory_link_pair(&MemoryLinkConfig::default());
        let disk = Box::new(LimitedWriter(Arc::clone(&written), 200));
        let mut link = PcapLink::new(a, disk, "ob0", Duration::ZERO).unwrap();
        let head = written.lock().unwrap().len();
        let mut pool = PacketPool::new(4);
        for i in 1..5 {
            // One second apart, so that each is flushed.
            let now = Instant::from_millis(i * 1000);
            assert_eq!(link.transmit(now, &mut frame(&[0; 1000])), LinkTxStatus::Sent);
            assert!(b.receive(now, &mut pool).is_some());
        }
        assert_eq!(link.counters().pcap_errors, 1);
        drop(link);
        assert_eq!(written.lock().unwrap().len(), head);
        let nowhere = Box::new(LimitedWriter(Arc::default(), 0));
        let (a, _b) = memory_link_pair(&MemoryLinkConfig::default());
        assert!(PcapLink::new(a, nowhere, "ob0", Duration::ZERO).is_err());
    }
}
