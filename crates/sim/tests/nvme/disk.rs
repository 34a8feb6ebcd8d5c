//! The disk of a machine in virtual time: one namespace with a volatile write cache, which the host
//! and its device have open, with faults that a test sets.

use std::collections::{BTreeMap, BTreeSet};

use abi::aligned::AlignedBuf;
use abi::disk::{DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{FileFault, FileKind, FileStat};
use base::{Duration, Instant, Prng};
use outboard_sim::namespace::SimNamespace;
use testkit::{MachineHalf, TestDisk};

/// Path of the namespace.
pub(crate) const PATH: &str = "ns";
/// Node number that is passed to [`SimNamespace`]. A disk belongs to one machine.
const NODE: usize = 0;

/// Faults of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFaults {
    /// Fault with which writes and zeroings fail.
    pub(crate) write: Option<FileFault>,
    /// True if flushes fail.
    pub(crate) flush: bool,
    /// Offset of a byte whose reads fail.
    pub(crate) read_at: Option<u64>,
    /// Additional latency of writes, zeroings and flushes.
    pub(crate) slow: Duration,
}

/// A request under way.
#[derive(Debug)]
enum FaultyDiskWork {
    Ready(DiskCompletion),
    /// The bytes are read at completion, unless they were already read at submission (`taken`).
    Read {
        id: DiskRequestId,
        offset: u64,
        buf: AlignedBuf,
        taken: bool,
    },
    Write {
        id: DiskRequestId,
        buf: Option<AlignedBuf>,
        name: Option<u64>,
        fault: Option<FileFault>,
    },
    Flush {
        id: DiskRequestId,
        name: u64,
        failed: bool,
    },
}

#[derive(Debug)]
pub(crate) struct FaultyDisk {
    namespace: Option<SimNamespace>,
    pub(crate) faults: DiskFaults,
    rng: Prng,
    open: BTreeSet<u32>,
    handles: u32,
    in_flight: BTreeMap<(Instant, u64), (MachineHalf, FaultyDiskWork)>,
    next: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) lost_sectors: u64,
}

impl FaultyDisk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            namespace: None,
            faults: DiskFaults::default(),
            rng: Prng::new(seed ^ 0xd15c),
            open: BTreeSet::new(),
            handles: 0,
            in_flight: BTreeMap::new(),
            next: 0,
            writes: 0,
            flushes: 0,
            lost_sectors: 0,
        }
    }

    /// Adds the namespace, `size` bytes of zeros.
    pub(crate) fn add_namespace(&mut self, size: usize) {
        self.namespace = Some(SimNamespace::new(size));
    }

    /// Adds the namespace with this content.
    pub(crate) fn fill_namespace(&mut self, content: Vec<u8>) {
        let mut namespace = SimNamespace::new(content.len());
        let write = namespace.begin(NODE, 0, content, true).expect("within the namespace");
        namespace.finish(write, None);
        self.namespace = Some(namespace);
    }

    /// Returns all bytes of the namespace.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let namespace = self.namespace.as_ref().expect("a namespace");
        let mut bytes = vec![0; namespace.size().try_into().unwrap()];
        namespace.read(0, &mut bytes);
        bytes
    }

    /// Handles a stop of the machine. Writes under way may be torn; with `power`, unflushed writes
    /// may be lost too.
    pub(crate) fn stop(&mut self, power: bool) {
        self.open.clear();
        let under_way = core::mem::take(&mut self.in_flight);
        let Some(namespace) = &mut self.namespace else { return };
        if power {
            self.lost_sectors += namespace.crash(NODE, &mut self.rng);
            return;
        }
        for (_, work) in under_way.into_values() {
            match work {
                FaultyDiskWork::Write { name: Some(name), .. } => {
                    namespace.finish(name, Some(&mut self.rng));
                }
                FaultyDiskWork::Flush { name, .. } => namespace.finish_flush(name, true),
                _ => {}
            }
        }
    }

    fn begin_write(
        &mut self,
        id: DiskRequestId,
        offset: u64,
        buf: Option<AlignedBuf>,
        bytes: Vec<u8>,
        fua: bool,
    ) -> FaultyDiskWork {
        self.writes += 1;
        let namespace = self.namespace.as_mut().expect("a namespace");
        let name = namespace.begin(NODE, offset, bytes, fua);
        FaultyDiskWork::Write { id, buf, name, fault: self.faults.write }
    }

    fn complete(&mut self, work: FaultyDiskWork) -> DiskCompletion {
        let namespace = match work {
            FaultyDiskWork::Ready(completion) => return completion,
            _ => self.namespace.as_mut().expect("a namespace"),
        };
        match work {
            FaultyDiskWork::Ready(completion) => completion,
            FaultyDiskWork::Read { id, offset, mut buf, taken } => {
                let there = namespace.size().saturating_sub(offset).min(buf.len() as u64);
                let bad = self.faults.read_at;
                let result = if bad.is_some_and(|at| (offset..offset + there).contains(&at)) {
                    Err(FileFault::Io)
                } else {
                    if !taken {
                        let out = &mut buf.as_mut_slice()[..there.try_into().unwrap()];
                        namespace.read(offset, out);
                    }
                    Ok((there.try_into().unwrap(), stat(namespace)))
                };
                DiskCompletion::Read { id, buf, result }
            }
            FaultyDiskWork::Write { id, buf, name, fault } => {
                let result = name.map_or(Err(FileFault::BadExtent), |_| fault.map_or(Ok(()), Err));
                let torn = fault.map(|_| &mut self.rng);
                if let Some(name) = name {
                    namespace.finish(name, torn);
                }
                match buf {
                    Some(buf) => DiskCompletion::Written { id, buf, result },
                    None => DiskCompletion::Zeroed { id, result },
                }
            }
            FaultyDiskWork::Flush { id, name, failed } => {
                namespace.finish_flush(name, failed);
                let result = if failed { Err(FileFault::Io) } else { Ok(()) };
                DiskCompletion::Flushed { id, result }
            }
        }
    }
}

impl TestDisk for FaultyDisk {
    fn submit(&mut self, now: Instant, by: MachineHalf, request: DiskRequest) {
        let mut after = Duration::from_nanos(self.rng.range(20_000, 200_000));
        let work = match request {
            DiskRequest::Open { id, path, .. } => {
                let there = self.namespace.as_ref().filter(|_| *path == *PATH.as_bytes());
                let result = there.map(stat).ok_or(FileFault::NotFound).map(|stat| {
                    self.handles += 1;
                    self.open.insert(self.handles);
                    (DiskFile(self.handles), stat)
                });
                FaultyDiskWork::Ready(DiskCompletion::Opened { id, result })
            }
            DiskRequest::Publish { .. } => panic!("a target uploads nothing"),
            DiskRequest::Close { file } => {
                assert!(self.open.remove(&file.0), "it is open");
                return;
            }
            DiskRequest::Read { id, file, offset, mut buf } => {
                assert!(self.open.contains(&file.0), "it is open");
                // The contract allows a read to see the bytes of submission or of completion
                // (`abi::disk::DiskRequest`).
                let taken = self.rng.chance(0.5);
                if taken {
                    let namespace = self.namespace.as_ref().expect("a namespace");
                    let there = namespace.size().saturating_sub(offset).min(buf.len() as u64);
                    let there = there.try_into().unwrap();
                    namespace.read(offset, &mut buf.as_mut_slice()[..there]);
                }
                FaultyDiskWork::Read { id, offset, buf, taken }
            }
            DiskRequest::Write { id, offset, buf, len, fua, .. } => {
                after += self.faults.slow;
                let bytes = buf.as_slice()[..len as usize].to_vec();
                self.begin_write(id, offset, Some(buf), bytes, fua)
            }
            DiskRequest::Zero { id, offset, len, .. } => {
                after += self.faults.slow;
                self.begin_write(id, offset, None, vec![0; len.try_into().unwrap()], false)
            }
            DiskRequest::Flush { id, .. } => {
                self.flushes += 1;
                after += self.faults.slow;
                let name = self.namespace.as_mut().expect("a namespace").begin_flush(NODE);
                FaultyDiskWork::Flush { id, name, failed: self.faults.flush }
            }
        };
        self.next += 1;
        self.in_flight.insert((now + after, self.next), (by, work));
    }

    fn poll(&mut self, now: Instant, by: MachineHalf) -> Option<DiskCompletion> {
        let is_due = |at: &&(Instant, u64)| at.0 <= now;
        let mut due = self.in_flight.iter().take_while(|(at, _)| is_due(at));
        let (&at, _) = due.find(|(_, (whom, _))| *whom == by)?;
        let (_, work) = self.in_flight.remove(&at)?;
        Some(self.complete(work))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.in_flight.keys().map(|(at, _)| *at).next()
    }
}

fn stat(namespace: &SimNamespace) -> FileStat {
    let (kind, size) = (FileKind::Regular, namespace.size());
    FileStat { kind, size, modified_s: 1, modified_ns: 2, version: 3 }
}
