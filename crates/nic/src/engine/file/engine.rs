//! The file engine's interface to the device: operations, disk completions, and resolved transmits.

use abi::disk::DiskCompletion;
use abi::nvme_tcp::PREFIX_BYTES_MAX;
use abi::{Capabilities, Event, FileFault, FileLimits, FileOpened, Op, Refusal};
use base::Instant;
use wire::tls::CONTENT_BYTES_MAX;

use super::FileEngine;
use super::counters::FileCounters;
use crate::config::{DeviceConfig, L5oConfig};
use crate::engine::{Engine, EngineRequest};
use crate::pipeline::Egress;

impl FileEngine {
    /// Handles a disk completion and emits the resulting events.
    pub(crate) fn complete(&mut self, completion: DiskCompletion, out: &mut Egress) {
        if let Some((queue, opened)) = self.handle(completion) {
            out.emit(queue, Event::FileOpened(opened));
        }
        while let Some((queue, file)) = self.poll_changed() {
            out.emit(queue, Event::FileChanged(file));
        }
    }
}

impl Engine for FileEngine {
    const ALARMS: &'static [&'static str] = FileCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        let file = config.file.clone()?;
        Some(Self::new(file, file_bytes_max(config), config.rss_seed))
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.file = Ok(FileLimits { files_max: self.files_max() });
    }

    fn handle_op(
        engine: Option<&mut Self>,
        _now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        match (op, engine) {
            (Op::FileOpen { file, path, access }, engine) => {
                let result = Err(FileFault::Refused(Refusal::Disabled));
                let answer = match engine {
                    Some(engine) => engine.open(queue, file, path, access),
                    None => Some(FileOpened { file, result }),
                };
                if let Some(opened) = answer {
                    out.emit(queue, Event::FileOpened(opened));
                }
            }
            (Op::FileInvalidate { file, offset, len }, Some(engine)) => {
                engine.invalidate(queue, file, offset, len);
            }
            (Op::FileClose { file }, Some(engine)) => engine.close(queue, file),
            (Op::FileAck(extent), Some(engine)) => engine.acknowledge(queue, extent),
            (Op::FileInvalidate { .. } | Op::FileClose { .. } | Op::FileAck(_), None) => {}
            (other, _) => return Some(other),
        }
        None
    }

    #[inline]
    fn has_requests(&self) -> bool {
        self.may_have_done()
    }

    fn poll_request(&mut self) -> Option<EngineRequest> {
        self.poll_done().map(|(transmit, result)| EngineRequest::Resolved(transmit, result))
    }

    fn is_starved(&self) -> bool {
        self.waits_for_memory()
    }

    fn reclaim_memory(&mut self) {
        self.retry_waiting();
    }

    fn reset(&mut self, _out: &mut Egress) {
        self.forget();
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}

/// Maximum file bytes that one transmit can need. If records are encrypted or PDUs completed, this
/// includes the bytes that precede each extent in its message.
fn file_bytes_max(config: &DeviceConfig) -> u32 {
    let extents = u32::try_from(FileLimits::EXTENTS_PER_TRANSMIT_MAX).unwrap_or(0);
    let message = u32::try_from(CONTENT_BYTES_MAX).unwrap_or(0);
    let pdus = |l5o: &L5oConfig| if l5o.nvme_tcp_tx { PREFIX_BYTES_MAX } else { 0 };
    let prefixes = config.l5o.as_ref().map_or(0, |l5o| extents * message + pdus(l5o));
    config.transmit_bytes_max.saturating_add(prefixes)
}
