//! A device under test with a mock host that sends, a link that records, and a disk in memory whose
//! completions are triggered by the test.

use abi::disk::DiskRequest;
use abi::link::{LinkCaps, TxFrame};
use abi::{
    Event, FileAccess, FileExtent, FileFault, FileId, FileStat, FlowId, Op, Transmit, TransmitDone,
    TransmitOutcome, TransmitPart,
};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base::Instant;
use base::counters::{collect_counters, moved};
use bytes::Bytes;
use testkit::{MemDisk, PLAIN_LINK};
use wire::frame::{ParsedFrame, parse};
use wire::tcp::TcpHeader;

use super::frames::{MAC, bytes_of, transmit, verify};
use crate::{Device, DeviceConfig, FileConfig};

/// Device, host, link and disk.
pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) now: Instant,
    pub(crate) disk: MemDisk,
    /// Requests that the disk has not answered: the test completes them, in any order.
    pub(crate) requests: Vec<DiskRequest>,
    /// Frames sent, oldest first.
    pub(crate) sent: Vec<TxFrame>,
    pub(crate) events: Vec<(usize, Event)>,
    /// If true, frames are not verified: the test sends malformed operations.
    pub(crate) lenient: bool,
    counted: Vec<(&'static str, u64)>,
}

impl Rig {
    pub(crate) fn new(file: FileConfig) -> Self {
        let mut config = DeviceConfig::new(MAC);
        (config.file, config.queues) = (Some(file), 2);
        Self::with(config, PLAIN_LINK)
    }

    pub(crate) fn with(config: DeviceConfig, link: LinkCaps) -> Self {
        let device = Device::new(config, link);
        let counted = collect_counters(|f| device.visit(f));
        Self {
            device,
            now: Instant::ZERO,
            disk: MemDisk::default(),
            requests: vec![],
            sent: vec![],
            events: vec![],
            lenient: false,
            counted,
        }
    }

    /// Creates a file of `len` bytes on the disk.
    pub(crate) fn put(&mut self, path: &str, len: usize, version: u64) {
        self.disk.insert(path, content(version, 0, len), version);
    }

    /// Has the device open a file as content.
    pub(crate) fn open(
        &mut self,
        queue: usize,
        id: u32,
        path: &str,
    ) -> Result<FileStat, FileFault> {
        self.open_for(queue, id, path, FileAccess::Content)
    }

    /// Has the device open a file for `access`.
    pub(crate) fn open_for(
        &mut self,
        queue: usize,
        id: u32,
        path: &str,
        access: FileAccess,
    ) -> Result<FileStat, FileFault> {
        self.op(queue, Op::FileOpen { file: FileId(id), path: path.as_bytes().into(), access });
        self.complete_all();
        self.events
            .iter()
            .rev()
            .find_map(|(q, event)| match event {
                Event::FileOpened(opened) if *q == queue && opened.file == FileId(id) => {
                    Some(opened.result)
                }
                _ => None,
            })
            .expect("an answer")
    }

    pub(crate) fn op(&mut self, queue: usize, op: Op) {
        self.device.handle_op(self.now, queue, op);
        self.collect();
    }

    pub(crate) fn close(&mut self, queue: usize, id: u32) {
        self.op(queue, Op::FileClose { file: FileId(id) });
    }

    pub(crate) fn ack(&mut self, queue: usize, id: u32, offset: u64, len: u32) {
        self.op(queue, Op::FileAck(FileExtent { file: FileId(id), offset, len }));
    }

    /// Passes a transmit to the device.
    pub(crate) fn send(&mut self, queue: usize, transmit: Transmit) {
        self.op(queue, Op::Transmit(transmit));
    }

    /// Polls frames, disk requests and events until none is left.
    pub(crate) fn collect(&mut self) {
        loop {
            let before = (self.sent.len(), self.requests.len(), self.events.len());
            while let Some(frame) = self.device.poll_frame(self.now) {
                if !self.lenient && !frame.checksum_partial && frame.header.l4() > 14 {
                    verify(&bytes_of(&frame));
                }
                // Copies the payload like a copying link, which releases the blocks.
                let copy = TxFrame {
                    payload: frame.payload.iter().map(|p| host(p.as_slice())).collect(),
                    ..frame.clone()
                };
                self.sent.push(copy);
            }
            while let Some(request) = self.device.poll_disk() {
                match &request {
                    DiskRequest::Close { .. } => drop(self.disk.execute(request)),
                    DiskRequest::Open { .. } => self.requests.push(request),
                    DiskRequest::Read { offset, .. } => {
                        assert_eq!(offset % 4096, 0, "page-aligned");
                        self.requests.push(request);
                    }
                    DiskRequest::Write { .. }
                    | DiskRequest::Flush { .. }
                    | DiskRequest::Publish { .. }
                    | DiskRequest::Zero { .. } => panic!("a device does not write"),
                }
            }
            self.events.extend(core::iter::from_fn(|| self.device.poll_event()));
            if before == (self.sent.len(), self.requests.len(), self.events.len()) {
                return;
            }
        }
    }

    /// Returns the next frame, after polling the events that it has to wait for.
    pub(crate) fn next_frame(&mut self) -> Option<TxFrame> {
        self.events.extend(core::iter::from_fn(|| self.device.poll_event()));
        self.device.poll_frame(self.now)
    }

    /// Completes the waiting request with index `at`.
    pub(crate) fn complete(&mut self, at: usize) {
        let request = self.requests.remove(at);
        if let Some(completion) = self.disk.execute(request) {
            self.device.handle_disk(self.now, completion);
        }
        self.collect();
    }

    /// Completes requests, oldest first, until none is left.
    pub(crate) fn complete_all(&mut self) {
        while !self.requests.is_empty() {
            self.complete(0);
        }
    }

    /// Returns offset and length of each waiting read.
    pub(crate) fn reads(&self) -> Vec<(u64, usize)> {
        let read = |request: &DiskRequest| match request {
            DiskRequest::Read { offset, buf, .. } => Some((*offset, buf.len())),
            _ => None,
        };
        self.requests.iter().filter_map(read).collect()
    }

    /// Returns sequence numbers and payloads of the packets sent since the last call.
    pub(crate) fn packets(&mut self) -> Vec<(u32, Vec<u8>)> {
        self.sent
            .drain(..)
            .map(|frame| {
                let bytes = bytes_of(&frame);
                let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) else { panic!("well-formed") };
                let (segment, header) = TcpHeader::parse(&bytes[ip.l4..]).unwrap();
                (segment.seq.0, bytes[ip.l4 + header..].to_vec())
            })
            .collect()
    }

    /// Returns sequence numbers of the packets sent since the last call.
    pub(crate) fn seqs(&mut self) -> Vec<u32> {
        self.packets().into_iter().map(|(seq, _)| seq).collect()
    }

    /// Returns completions of transmits since the last call.
    pub(crate) fn done(&mut self) -> Vec<TransmitDone> {
        let events = core::mem::take(&mut self.events);
        events
            .into_iter()
            .filter_map(|(_, event)| match event {
                Event::TransmitDone(done) => Some(done),
                _ => None,
            })
            .collect()
    }

    /// Returns tags and outcomes of transmits completed since the last call.
    pub(crate) fn outcomes(&mut self) -> Vec<(u32, TransmitOutcome)> {
        self.done().into_iter().map(|done| (done.tag, done.outcome)).collect()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        testkit::count(name, |f| self.device.visit(f))
    }

    /// Returns the counters with one of the prefixes that changed since the last call, as `name
    /// +n`, in the order of [`Device::visit`].
    pub(crate) fn moved(&mut self, prefixes: &[&str]) -> Vec<String> {
        let now = collect_counters(|f| self.device.visit(f));
        let out = moved(&self.counted, &now)
            .into_iter()
            .filter(|(name, _)| prefixes.iter().any(|p| name.starts_with(p)))
            .map(|(name, by)| alloc::format!("{name} +{by}"))
            .collect();
        self.counted = now;
        out
    }
}

fn host(bytes: &[u8]) -> abi::link::FramePayload {
    abi::link::FramePayload::Host(Bytes::copy_from_slice(bytes))
}

/// Byte `at` of the file with version `version`.
pub(crate) fn pattern(version: u64, at: usize) -> u8 {
    u8::try_from((version * 31 + at as u64 * 7 + at as u64 / 251) % 256).unwrap()
}

/// Bytes of the file with version `version`.
pub(crate) fn content(version: u64, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|i| pattern(version, i)).collect()
}

/// Returns a transmit with an echo, whose tag is its sequence number.
pub(crate) fn echoed(flow: u64, tag: u32) -> Transmit {
    Transmit { echo: Some(tag), ..transmit(FlowId(flow), tag, 1448) }
}

/// Returns a transmit of host memory.
pub(crate) fn plain(flow: u64, tag: u32, bytes: &[u8]) -> Transmit {
    let mut transmit = echoed(flow, tag);
    transmit.parts.push(TransmitPart::Host(Bytes::copy_from_slice(bytes)));
    transmit
}

/// Returns a transmit of a file extent.
pub(crate) fn extent(flow: u64, tag: u32, file: u32, offset: u64, len: u32) -> Transmit {
    let mut transmit = echoed(flow, tag);
    transmit.parts.push(TransmitPart::File(FileExtent { file: FileId(file), offset, len }));
    transmit
}
