//! What the tests here have in common: hosts with their devices, and a disk in memory.

use std::collections::BTreeMap;

use abi::disk::{DiskCompletion, DiskFile, DiskRequest};
use abi::port::{RxFrame, WireCaps};
use abi::{Checksum, FileFault, FileKind, FileStat, Refusal};
use base::Instant;
use host::{Cidr, Host};
use nic::{Device, DeviceConfig, L5oConfig};

pub(crate) const CLIENT: u8 = 1;
pub(crate) const SERVER: u8 = 2;
const WIRE: WireCaps =
    WireCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };

/// Files in memory, answered at once.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<String, (FileStat, Vec<u8>)>,
    open: Vec<String>,
    pub(crate) opens: usize,
    pub(crate) closes: usize,
}

impl Disk {
    pub(crate) fn put(&mut self, path: &str, content: Vec<u8>, version: u64) {
        let size = content.len() as u64;
        let kind = FileKind::Regular;
        let stat = FileStat { kind, size, modified_s: 784_111_777, modified_ns: 0, version };
        self.files.insert(path.into(), (stat, content));
    }

    fn range(&mut self, file: DiskFile, offset: u64, len: usize) -> &mut [u8] {
        let path = &self.open[file.0 as usize];
        let (_, content) = self.files.get_mut(path).expect("it is open");
        &mut content[usize::try_from(offset).expect("small files")..][..len]
    }

    fn answer(&mut self, request: DiskRequest) -> Option<DiskCompletion> {
        match request {
            DiskRequest::Open { id, path, .. } => {
                let found = self
                    .files
                    .get(&*String::from_utf8_lossy(&path))
                    .map(|f| f.0)
                    .ok_or(FileFault::NotFound);
                self.opens += usize::from(found.is_ok());
                self.open.push(String::from_utf8_lossy(&path).into());
                let file = DiskFile(u32::try_from(self.open.len() - 1).expect("few files"));
                Some(DiskCompletion::Opened { id, result: found.map(|stat| (file, stat)) })
            }
            DiskRequest::Read { id, file, offset, mut buf } => {
                let (stat, content) = &self.files[&self.open[file.0 as usize]];
                let from = usize::try_from(offset).expect("small files").min(content.len());
                let len = buf.as_slice().len().min(content.len() - from);
                buf.as_mut_slice()[..len].copy_from_slice(&content[from..from + len]);
                let read = u32::try_from(len).expect("small reads");
                Some(DiskCompletion::Read { id, buf, result: Ok((read, *stat)) })
            }
            DiskRequest::Write { id, file, offset, buf, len, .. } => {
                let from = &buf.as_slice()[..len as usize];
                self.range(file, offset, from.len()).copy_from_slice(from);
                Some(DiskCompletion::Written { id, buf, result: Ok(()) })
            }
            DiskRequest::Flush { id, .. } => Some(DiskCompletion::Flushed { id, result: Ok(()) }),
            DiskRequest::Zero { id, file, offset, len, .. } => {
                let len = usize::try_from(len).expect("small files");
                self.range(file, offset, len).fill(0);
                Some(DiskCompletion::Zeroed { id, result: Ok(()) })
            }
            DiskRequest::Close { .. } => {
                self.closes += 1;
                None
            }
        }
    }
}

pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) device: Device,
}

impl Node {
    /// A host that leaves to its device what `offload` says, and a device that has an engine for
    /// protocols above TCP, or none.
    pub(crate) fn new(number: u8, offload: Result<(), Refusal>, l5o: Option<L5oConfig>) -> Self {
        let config = DeviceConfig { l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) };
        let device = Device::new(config, WIRE);
        let config = host::Config {
            addrs: vec![Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 }],
            file_offload: offload,
            nvme_tcp_offload: offload,
            ..host::Config::default()
        };
        Self { host: Host::new(config, &device.capabilities(), number.into()), device }
    }

    /// Moves operations, events and disk requests until nothing moves; gives the frames for the
    /// wire.
    pub(crate) fn run(&mut self, now: Instant, disk: &mut Disk) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut moved = false;
            while let Some(op) = self.host.poll_op(now) {
                self.device.handle_op(now, 0, op);
                moved = true;
            }
            while let Some(frame) = self.device.poll_frame(now) {
                let mut bytes = vec![0; frame.len()];
                frame.copy_to(&mut bytes);
                frames.push(bytes);
                moved = true;
            }
            while let Some(request) = self.device.poll_disk() {
                if let Some(completion) = disk.answer(request) {
                    self.device.handle_disk(now, completion);
                }
                moved = true;
            }
            while let Some(request) = self.host.poll_disk() {
                if let Some(completion) = disk.answer(request) {
                    self.host.handle_disk(now, completion);
                }
                moved = true;
            }
            while let Some((_, event)) = self.device.poll_event() {
                self.host.handle_event(now, event);
                moved = true;
            }
            while let Some(packet) = self.host.poll_recycle() {
                self.device.pool().put(packet);
            }
            if !moved {
                return frames;
            }
        }
    }

    pub(crate) fn receive(&mut self, now: Instant, frame: &[u8]) {
        let packet = self.device.pool().copy(frame).expect("frames fit buffers");
        let checksum = Checksum::Unchecked;
        self.device.handle_frame(now, RxFrame { packet, checksum, segment_size: 0 });
    }

    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.host.poll_timeout().into_iter().chain(self.device.poll_timeout(now)).min()
    }
}

pub(crate) fn content(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}
