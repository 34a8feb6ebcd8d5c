//! A device with a host that sends, a link that records and a disk in memory whose answers come
//! when the test says so.

use abi::disk::DiskRequest;
use abi::port::{TxFrame, WireCaps};
use abi::{
    Event, FileAccess, FileExtent, FileFault, FileId, FileStat, FlowId, Op, Part, Transmit,
    TransmitDone, TransmitOutcome,
};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base::Instant;
use base::counters::{all, moved};
use bytes::Bytes;
use testkit::{MemDisk, PLAIN_LINK};
use wire::frame::{Frame, parse};
use wire::tcp::Segment;

use super::frames::{MAC, bytes_of, transmit, verify};
use crate::{Device, DeviceConfig, FileConfig};

/// Device, host, wire and disk.
pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) now: Instant,
    pub(crate) disk: MemDisk,
    /// Requests that the disk has not answered: the test completes them, in any order.
    pub(crate) requests: Vec<DiskRequest>,
    /// Frames that left, oldest first.
    pub(crate) sent: Vec<TxFrame>,
    pub(crate) events: Vec<(usize, Event)>,
    /// Frames are not looked at: the host sends nonsense.
    pub(crate) lenient: bool,
    counted: Vec<(&'static str, u64)>,
}

impl Rig {
    pub(crate) fn new(file: FileConfig) -> Self {
        let mut config = DeviceConfig::new(MAC);
        (config.file, config.queues) = (Some(file), 2);
        Self::with(config, PLAIN_LINK)
    }

    pub(crate) fn with(config: DeviceConfig, wire: WireCaps) -> Self {
        let device = Device::new(config, wire);
        let counted = all(|f| device.visit(f));
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

    /// Puts a file of `len` bytes on the disk.
    pub(crate) fn put(&mut self, path: &str, len: usize, version: u64) {
        self.disk.put(path, content(version, 0, len), version);
    }

    /// Puts a file on the disk and has the device open it.
    pub(crate) fn open(
        &mut self,
        queue: usize,
        id: u32,
        path: &str,
    ) -> Result<FileStat, FileFault> {
        self.open_for(queue, id, path, FileAccess::Content)
    }

    /// The same, for what it says.
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

    /// Sends a transmit; its sequence number is its tag, so that frames can be told apart.
    pub(crate) fn send(&mut self, queue: usize, transmit: Transmit) {
        self.op(queue, Op::Transmit(transmit));
    }

    /// Polls frames and disk requests until there are none; then events.
    pub(crate) fn collect(&mut self) {
        loop {
            let before = (self.sent.len(), self.requests.len(), self.events.len());
            while let Some(frame) = self.device.poll_frame(self.now) {
                if !self.lenient && !frame.checksum_partial && frame.header.l4() > 14 {
                    verify(&bytes_of(&frame));
                }
                // As a wire that copies: the blocks are let go.
                let copy = TxFrame {
                    payload: frame.payload.iter().map(|p| host(p.as_slice())).collect(),
                    ..frame.clone()
                };
                self.sent.push(copy);
            }
            while let Some(request) = self.device.poll_disk() {
                match &request {
                    DiskRequest::Close { .. } => drop(self.disk.answer(request)),
                    DiskRequest::Open { .. } => self.requests.push(request),
                    DiskRequest::Read { offset, .. } => {
                        assert_eq!(offset % 4096, 0, "page-aligned");
                        self.requests.push(request);
                    }
                    DiskRequest::Write { .. }
                    | DiskRequest::Flush { .. }
                    | DiskRequest::Zero { .. } => panic!("a device does not write"),
                }
            }
            self.events.extend(core::iter::from_fn(|| self.device.poll_event()));
            if before == (self.sent.len(), self.requests.len(), self.events.len()) {
                return;
            }
        }
    }

    /// Returns the next frame, after the events that it has to wait for.
    pub(crate) fn next_frame(&mut self) -> Option<TxFrame> {
        self.events.extend(core::iter::from_fn(|| self.device.poll_event()));
        self.device.poll_frame(self.now)
    }

    /// Completes one waiting request.
    pub(crate) fn complete(&mut self, at: usize) {
        let request = self.requests.remove(at);
        if let Some(completion) = self.disk.answer(request) {
            self.device.handle_disk(self.now, completion);
        }
        self.collect();
    }

    /// Completes requests, oldest first, until there are none.
    pub(crate) fn complete_all(&mut self) {
        while !self.requests.is_empty() {
            self.complete(0);
        }
    }

    /// The disk request that waits at `at` is a read of this file at this offset.
    pub(crate) fn reads(&self) -> Vec<(u64, usize)> {
        let read = |request: &DiskRequest| match request {
            DiskRequest::Read { offset, buf, .. } => Some((*offset, buf.len())),
            _ => None,
        };
        self.requests.iter().filter_map(read).collect()
    }

    /// Sequence numbers and payloads of the packets that left since the last call.
    pub(crate) fn packets(&mut self) -> Vec<(u32, Vec<u8>)> {
        self.sent
            .drain(..)
            .map(|frame| {
                let bytes = bytes_of(&frame);
                let Ok(Frame::Ip(ip)) = parse(&bytes) else { panic!("well-formed") };
                let (segment, header) = Segment::parse(&bytes[ip.l4..]).unwrap();
                (segment.seq.0, bytes[ip.l4 + header..].to_vec())
            })
            .collect()
    }

    /// Sequence numbers of the packets that left since the last call.
    pub(crate) fn seqs(&mut self) -> Vec<u32> {
        self.packets().into_iter().map(|(seq, _)| seq).collect()
    }

    /// Ends of transmits since the last call.
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

    /// Tags and outcomes of transmits that ended since the last call.
    pub(crate) fn outcomes(&mut self) -> Vec<(u32, TransmitOutcome)> {
        self.done().into_iter().map(|done| (done.tag, done.outcome)).collect()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        testkit::count(name, |f| self.device.visit(f))
    }

    /// What moved since the last call, in order of name, as `name +n`, words without the given
    /// prefixes left out.
    pub(crate) fn moved(&mut self, prefixes: &[&str]) -> Vec<String> {
        let now = all(|f| self.device.visit(f));
        let out = moved(&self.counted, &now)
            .into_iter()
            .filter(|(name, _)| prefixes.iter().any(|p| name.starts_with(p)))
            .map(|(name, by)| alloc::format!("{name} +{by}"))
            .collect();
        self.counted = now;
        out
    }
}

fn host(bytes: &[u8]) -> abi::port::Payload {
    abi::port::Payload::Host(Bytes::copy_from_slice(bytes))
}

/// Byte `at` of the file of `version`.
pub(crate) fn pattern(version: u64, at: usize) -> u8 {
    u8::try_from((version * 31 + at as u64 * 7 + at as u64 / 251) % 256).unwrap()
}

/// Bytes of the file of `version`.
pub(crate) fn content(version: u64, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|i| pattern(version, i)).collect()
}

/// A transmit with an echo whose tag is its sequence number.
pub(crate) fn echoed(flow: u64, tag: u32) -> Transmit {
    Transmit { echo: Some(tag), ..transmit(FlowId(flow), tag, 1448) }
}

/// A transmit of host bytes.
pub(crate) fn plain(flow: u64, tag: u32, bytes: &[u8]) -> Transmit {
    let mut transmit = echoed(flow, tag);
    transmit.parts.push(Part::Host(Bytes::copy_from_slice(bytes)));
    transmit
}

/// A transmit of a file extent.
pub(crate) fn extent(flow: u64, tag: u32, file: u32, offset: u64, len: u32) -> Transmit {
    let mut transmit = echoed(flow, tag);
    transmit.parts.push(Part::File(FileExtent { file: FileId(file), offset, len }));
    transmit
}
