//! Reads the discovery log: the addresses of subsystems (fabrics section 5).
//!
//! [`Discovery`] uses an initiator of the discovery subsystem. It reads the log in pieces and
//! compares its header before and after; a log that changed meanwhile is read again. It is called
//! as [`super::Initiator`] is.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use base::Instant;
use host::{Application, Host, Notice};
use wire::Endpoint;
use wire::nvme::command::{GetLogPage, NvmeCommand, admin};
use wire::nvme::log::{DiscoveryEntry, DiscoveryHeader, lid};
use wire::nvme::nqn::Nqn;

use super::{
    AdminData, AssociationLoss, Initiator, InitiatorConfig, InitiatorCounters, InitiatorEvent,
    NvmeRequest, NvmeRequestError,
};

/// Maximum number of entries that are read.
const ENTRIES_MAX: u64 = 16_384;
/// Maximum number of restarts because the log changed.
const RESTARTS_MAX: u8 = 8;
/// Bytes per Get Log Page.
const PIECE_BYTES: u64 = PAGE_BYTES as u64;

/// Reason for which the log could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The controller could not be connected.
    #[error("{0}")]
    Controller(AssociationLoss),
    /// Reading the log failed.
    #[error("cannot read the discovery log: {0}")]
    Log(NvmeRequestError),
    /// The log changed in every attempt.
    #[error("the discovery log changes faster than it can be read")]
    Changing,
    /// The log claims to be unreasonably large, or has an unknown format.
    #[error("the discovery log is malformed")]
    Malformed,
}

/// The response that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscoveryStep {
    Connect,
    /// The header, before the entries.
    Begin,
    Entries(DiscoveryHeader),
    /// The header again, after the entries.
    Check(DiscoveryHeader),
    Over,
}

/// A reading of the discovery log.
#[derive(Debug)]
pub struct Discovery {
    initiator: Initiator,
    step: DiscoveryStep,
    entries: Vec<DiscoveryEntry>,
    restarts: u8,
    result: Option<Result<Vec<DiscoveryEntry>, DiscoveryError>>,
}

impl Discovery {
    /// Starts to read the log of the discovery controller at `remote`. The subsystem, queues and
    /// keep alive of `config` are ignored.
    #[must_use]
    pub fn new(now: Instant, host: &mut Host, config: InitiatorConfig, remote: Endpoint) -> Self {
        let keep_alive = base::Duration::ZERO;
        let config = InitiatorConfig { subsystem: Nqn::discovery(), keep_alive, ..config };
        let mut initiator = Initiator::new(config, remote);
        initiator.connect(now, host);
        let (step, entries) = (DiscoveryStep::Connect, Vec::new());
        let mut discovery = Self { initiator, step, entries, restarts: 0, result: None };
        discovery.process_events(now, host);
        discovery
    }

    /// Ends a reading in progress, as [`Initiator::close`] does.
    pub fn close(&mut self, now: Instant, host: &mut Host) {
        self.end(now, host, Err(DiscoveryError::Log(NvmeRequestError::Closed)));
    }

    /// Returns the log or the error, once, when the reading has ended.
    pub fn poll(&mut self) -> Option<Result<Vec<DiscoveryEntry>, DiscoveryError>> {
        self.result.take()
    }

    /// Returns the counters of the initiator.
    #[must_use]
    pub const fn counters(&self) -> &InitiatorCounters {
        self.initiator.counters()
    }

    fn process_events(&mut self, now: Instant, host: &mut Host) {
        while let Some(event) = self.initiator.poll_event() {
            match event {
                InitiatorEvent::Connected if self.step == DiscoveryStep::Connect => {
                    self.ask(now, host, DiscoveryStep::Begin, 0, DiscoveryHeader::BYTES as u64);
                }
                InitiatorEvent::Failed(loss) => {
                    self.end(now, host, Err(DiscoveryError::Controller(loss)));
                }
                _ => {}
            }
        }
        while let Some(done) = self.initiator.poll_done() {
            match (done.result, done.buffer) {
                (Ok(_), Some(buffer)) => self.handle_page(now, host, buffer.as_slice()),
                (Err(error), _) => self.end(now, host, Err(DiscoveryError::Log(error))),
                (Ok(_), None) => {}
            }
        }
    }

    fn ask(&mut self, now: Instant, host: &mut Host, step: DiscoveryStep, offset: u64, len: u64) {
        self.step = step;
        let page = GetLogPage { lid: lid::DISCOVERY, len, offset, ..GetLogPage::default() };
        let command = page.encode_into(NvmeCommand::new(admin::GET_LOG_PAGE, 0, 0));
        let data = AdminData::In(u32::try_from(len).unwrap_or(0));
        let request = NvmeRequest::Admin { command, data };
        let buffer = Some(AlignedBuf::new(1));
        if self.initiator.submit(now, host, (0, 0), request, buffer).is_err() {
            debug_assert!(false, "one request at a time");
        }
    }

    fn ask_entries(&mut self, now: Instant, host: &mut Host, header: DiscoveryHeader) {
        let have = self.entries.len() as u64;
        let entry = DiscoveryEntry::BYTES as u64;
        let left = header.records.saturating_sub(have) * entry;
        if left == 0 {
            let len = DiscoveryHeader::BYTES as u64;
            return self.ask(now, host, DiscoveryStep::Check(header), 0, len);
        }
        let offset = DiscoveryHeader::BYTES as u64 + have * entry;
        self.ask(now, host, DiscoveryStep::Entries(header), offset, left.min(PIECE_BYTES));
    }

    fn handle_page(&mut self, now: Instant, host: &mut Host, page: &[u8]) {
        match self.step {
            DiscoveryStep::Begin => {
                let header = DiscoveryHeader::parse(page);
                let sane = |h: &DiscoveryHeader| h.format == 0 && h.records <= ENTRIES_MAX;
                match header.filter(sane) {
                    Some(header) => {
                        self.entries.clear();
                        self.ask_entries(now, host, header);
                    }
                    None => self.end(now, host, Err(DiscoveryError::Malformed)),
                }
            }
            DiscoveryStep::Entries(header) => {
                let left = usize::try_from(header.records).unwrap_or(0) - self.entries.len();
                let pieces = page.chunks_exact(DiscoveryEntry::BYTES).take(left);
                let parsed = pieces.filter_map(|piece| piece.first_chunk());
                self.entries.extend(parsed.map(DiscoveryEntry::parse));
                self.ask_entries(now, host, header);
            }
            // A log that changed between the pieces is inconsistent (fabrics section 5.2).
            DiscoveryStep::Check(before) if DiscoveryHeader::parse(page) != Some(before) => {
                self.restarts += 1;
                if self.restarts > RESTARTS_MAX {
                    return self.end(now, host, Err(DiscoveryError::Changing));
                }
                self.ask(now, host, DiscoveryStep::Begin, 0, DiscoveryHeader::BYTES as u64);
            }
            DiscoveryStep::Check(_) => {
                let entries = core::mem::take(&mut self.entries);
                self.end(now, host, Ok(entries));
            }
            DiscoveryStep::Connect | DiscoveryStep::Over => {}
        }
    }

    fn end(
        &mut self,
        now: Instant,
        host: &mut Host,
        result: Result<Vec<DiscoveryEntry>, DiscoveryError>,
    ) {
        if self.step != DiscoveryStep::Over {
            self.step = DiscoveryStep::Over;
            self.result = Some(result);
            self.initiator.close(now, host);
        }
    }
}

impl Application for Discovery {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.initiator.handle_notice(now, host, notice);
        self.process_events(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.initiator.handle_timeout(now, host);
        self.process_events(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.initiator.poll_timeout()
    }
}
