//! Controllers. A controller is one association of an initiator with a subsystem; it exists from
//! the Connect of its admin queue to the end of that connection (fabrics section 1.5).
//!
//! This module accesses no connection. Commands about a controller are executed in `admin`,
//! `features` and `pages`.

use std::collections::VecDeque;

use base::{Duration, Instant};
use wire::nvme::command::{AsyncEvent, events};
use wire::nvme::fabrics::{
    CNTLID_MAX, ControllerCapabilities, ControllerConfiguration, ControllerStatus, PropertyGet,
    PropertySet, ShutdownNotification, ShutdownStatus, property, version,
};
use wire::nvme::log::ErrorLogEntry;
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::buffer_quota::BufferQuota;
use super::features::FeatureValues;

/// Identifies a connection of the target: the slot of its socket, and a serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetConnId {
    pub(super) index: usize,
    pub(super) serial: u32,
}

/// Entries of the error log: ELPE plus one.
pub(super) const ERRORS_MAX: u8 = 16;
/// Concurrent Asynchronous Event Requests: AERL plus one.
pub(super) const EVENT_REQUESTS_MAX: u8 = 4;
/// Granularity of the keep alive timer in milliseconds. KAS has units of 100 ms.
pub(super) const KEEP_ALIVE_MS: u32 = 100;
/// NVMe version that controllers report: 1.4.
pub(super) const VERSION: u32 = version::V1_4;

/// Asynchronous events (base section 5.2). An event is reported once until its log page is read.
#[derive(Debug, Default)]
pub(super) struct AsyncEventState {
    /// Identifiers of open Asynchronous Event Requests.
    requests: VecDeque<u16>,
    /// Events enabled by the initiator: bits of [`events`].
    pub(super) enabled: u32,
    /// Progress of the event for changed namespaces.
    namespaces: AsyncEventProgress,
    discovery: AsyncEventProgress,
    /// Namespaces that changed since the log page was read; at most one more than the page can
    /// list.
    pub(super) changed: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AsyncEventProgress {
    #[default]
    Nothing,
    Due,
    Sent,
}

impl AsyncEventState {
    /// Keeps an event request. Returns false if there are too many.
    pub(super) fn request(&mut self, cid: u16) -> bool {
        let room = self.requests.len() < usize::from(EVENT_REQUESTS_MAX);
        if room {
            self.requests.push_back(cid);
        }
        room
    }

    /// Cancels an event request. Returns false if it does not exist.
    pub(super) fn cancel(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|open| *open != cid);
        self.requests.len() < before
    }

    /// Records a namespace that was added, removed or changed.
    pub(super) fn namespace_changed(&mut self, nsid: u32) {
        if !self.changed.contains(&nsid) && self.changed.len() <= CHANGED_MAX {
            self.changed.push(nsid);
        }
        if self.enabled & events::NAMESPACES != 0 && self.namespaces == AsyncEventProgress::Nothing
        {
            self.namespaces = AsyncEventProgress::Due;
        }
    }

    /// Records a change of the discovery log.
    pub(super) fn discovery_changed(&mut self) {
        if self.enabled & events::DISCOVERY != 0 && self.discovery == AsyncEventProgress::Nothing {
            self.discovery = AsyncEventProgress::Due;
        }
    }

    /// Resets the event after the log page of changed namespaces was read.
    pub(super) fn namespace_log_read(&mut self) {
        self.changed.clear();
        self.namespaces = AsyncEventProgress::Nothing;
    }

    /// Resets the event after the discovery log was read.
    pub(super) fn discovery_log_read(&mut self) {
        self.discovery = AsyncEventProgress::Nothing;
    }

    /// Returns the next event and the request that it completes.
    pub(super) fn poll(&mut self) -> Option<(u16, AsyncEvent)> {
        let (report, event) = match (self.namespaces, self.discovery) {
            (AsyncEventProgress::Due, _) => (&mut self.namespaces, AsyncEvent::NAMESPACE_CHANGED),
            (_, AsyncEventProgress::Due) => (&mut self.discovery, AsyncEvent::DISCOVERY_CHANGED),
            _ => return None,
        };
        let cid = self.requests.pop_front()?;
        *report = AsyncEventProgress::Sent;
        Some((cid, event))
    }
}

/// Namespaces that the log page of changed namespaces can list.
pub(super) const CHANGED_MAX: usize = 1024;

/// A controller.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) cntlid: u16,
    /// Index of the subsystem; `None` for a discovery controller.
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
    configuration: ControllerConfiguration,
    status: ControllerStatus,
    /// Keep alive timeout in milliseconds; zero if disabled.
    kato: u32,
    /// Time of the last command.
    pub(super) last_command: Instant,
    /// Connections indexed by queue ID; 0 is the admin queue.
    queues: Vec<Option<TargetConnId>>,
    /// Number of I/O queues granted by Set Features; zero if not set.
    pub(super) io_queues_granted: u16,
    pub(super) values: FeatureValues,
    pub(super) events: AsyncEventState,
    /// Error log, the newest entry first.
    pub(super) errors: VecDeque<ErrorLogEntry>,
    pub(super) error_count: u64,
    pub(super) quota: BufferQuota,
}

impl Controller {
    /// Returns whether I/O commands, and admin commands other than Fabrics commands, are accepted.
    pub(super) const fn is_ready(&self) -> bool {
        self.status.ready && matches!(self.status.shutdown, ShutdownStatus::Normal)
    }

    /// Returns the keep alive timeout in milliseconds.
    pub(super) const fn kato(&self) -> u32 {
        self.kato
    }

    /// Sets the keep alive timeout, rounded up to the timer's granularity; zero disables it.
    pub(super) fn set_kato(&mut self, ms: u32) {
        self.kato = ms.div_ceil(KEEP_ALIVE_MS).saturating_mul(KEEP_ALIVE_MS);
    }

    /// Returns the time at which the keep alive timer expires (base section 3.9). Any command on
    /// any queue restarts it.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.kato > 0).then(|| self.last_command + Duration::from_millis(u64::from(self.kato)))
    }

    /// Returns the connection of a queue.
    pub(super) fn queue(&self, qid: u16) -> Option<TargetConnId> {
        self.queues.get(usize::from(qid)).copied().flatten()
    }

    /// Adds a queue, whose ID must be free.
    pub(super) fn add_queue(&mut self, qid: u16, key: TargetConnId) {
        let index = usize::from(qid);
        if self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        if let Some(queue) = self.queues.get_mut(index) {
            *queue = Some(key);
        }
    }

    /// Removes a queue whose connection has ended.
    pub(super) fn remove_queue(&mut self, qid: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(qid)) {
            *queue = None;
        }
    }

    /// Returns the connections of the I/O queues.
    pub(super) fn io_queues(&self) -> impl Iterator<Item = TargetConnId> + '_ {
        self.queues.iter().skip(1).copied().flatten()
    }

    /// Executes Property Get. While namespaces are being opened (`opening`), CSTS.RDY reads as
    /// zero, so that an initiator that reconnects to a restarted target waits, rather than taking
    /// its namespaces for removed.
    ///
    /// # Errors
    /// The offset does not exist over Fabrics, or the size is wrong.
    pub(super) fn property(
        &self,
        get: PropertyGet,
        mqes: u16,
        opening: bool,
    ) -> Result<u64, NvmeStatus> {
        let ready = self.status.ready && !opening;
        let status = ControllerStatus { ready, ..self.status };
        Ok(match (get.offset, get.attribute) {
            (property::CAP, 1) => capabilities(mqes).to_value(),
            (property::VS, 0) => u64::from(VERSION),
            (property::CC, 0) => u64::from(self.configuration.to_value()),
            (property::CSTS, 0) => u64::from(status.to_value()),
            _ => return Err(NvmeStatus::INVALID_FIELD.do_not_retry()),
        })
    }

    /// Executes Property Set. Only CC can be set.
    ///
    /// # Errors
    /// The offset or the size is wrong, or the value has more than 32 bits.
    pub(super) fn set_property(&mut self, set: PropertySet) -> Result<(), NvmeStatus> {
        let value = match (set.offset, set.attribute) {
            (property::CC, 0) => u32::try_from(set.value).ok(),
            _ => None,
        };
        let value = value.ok_or(NvmeStatus::INVALID_FIELD.do_not_retry())?;
        self.configure(ControllerConfiguration::from_value(value));
        Ok(())
    }

    /// Handles a write of CC (base section 3.1.3.5).
    fn configure(&mut self, new: ControllerConfiguration) {
        let old = core::mem::replace(&mut self.configuration, new);
        if new.enable && !old.enable {
            // Only values that CAP announces: the NVM command set, 4 KiB pages, round robin.
            let known = matches!(new.css, 0 | 6) && new.mps == 0 && new.ams == 0;
            let entries = self.subsystem.is_none() || (new.iosqes, new.iocqes) == (6, 4);
            let shutdown = ShutdownStatus::Normal;
            let good = known && entries;
            self.status = ControllerStatus { ready: good, fatal: !good, shutdown };
        } else if !new.enable && old.enable {
            // Controller reset: features return to their defaults, queues stay connected.
            self.status = ControllerStatus::default();
            self.values = FeatureValues::default();
            self.events.enabled = 0;
        }
        if !matches!(new.shutdown, ShutdownNotification::None) && old.shutdown != new.shutdown {
            // Written data is at the disk already, so shutdown completes at once.
            self.status.shutdown = ShutdownStatus::Complete;
        }
    }

    /// Adds a failed command to the error log.
    pub(super) fn record_error(&mut self, sqid: u16, cid: u16, status: NvmeStatus) {
        self.error_count += 1;
        self.errors.truncate(usize::from(ERRORS_MAX) - 1);
        let (location, lba, nsid) = (u16::MAX, 0, 0);
        let count = self.error_count;
        self.errors.push_front(ErrorLogEntry { count, sqid, cid, status, location, lba, nsid });
    }
}

/// Returns CAP. The timeout is 5 s; enabling takes no time.
fn capabilities(mqes: u16) -> ControllerCapabilities {
    ControllerCapabilities {
        mqes,
        contiguous: true,
        timeout: 10,
        css: 1,
        mpsmin: 0,
        mpsmax: 0,
        ready_modes: 0,
    }
}

/// Parameters of a new controller, from Connect.
pub(super) struct NewControllerParams {
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
    pub(super) kato: u32,
}

/// The table of controllers.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    /// Sorted by identifier, for binary search.
    table: Vec<Controller>,
    /// Identifier assigned last. Identifiers are reused as late as possible.
    last: u16,
}

impl Controllers {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Controller> {
        self.table.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Controller> {
        self.table.iter_mut()
    }

    pub(super) fn get(&self, cntlid: u16) -> Option<&Controller> {
        let index = self.table.binary_search_by_key(&cntlid, |one| one.cntlid).ok()?;
        self.table.get(index)
    }

    pub(super) fn get_mut(&mut self, cntlid: u16) -> Option<&mut Controller> {
        let index = self.table.binary_search_by_key(&cntlid, |one| one.cntlid).ok()?;
        self.table.get_mut(index)
    }

    /// Creates a controller for a new admin queue. Returns `None` if no identifier is free.
    pub(super) fn create(
        &mut self,
        now: Instant,
        admission: NewControllerParams,
        admin: TargetConnId,
    ) -> Option<u16> {
        let free = |id: &u16| self.table.binary_search_by_key(id, |one| one.cntlid).is_err();
        let next = (self.last + 1..=CNTLID_MAX).chain(1..=self.last);
        let cntlid = { next }.find(free)?;
        let mut controller = Controller {
            cntlid,
            subsystem: admission.subsystem,
            hostnqn: admission.hostnqn,
            hostid: admission.hostid,
            configuration: ControllerConfiguration::default(),
            status: ControllerStatus::default(),
            kato: 0,
            last_command: now,
            queues: vec![Some(admin)],
            io_queues_granted: 0,
            values: FeatureValues::default(),
            events: AsyncEventState::default(),
            errors: VecDeque::new(),
            error_count: 0,
            quota: BufferQuota::default(),
        };
        controller.set_kato(admission.kato);
        let place = self.table.partition_point(|one| one.cntlid < cntlid);
        self.table.insert(place, controller);
        self.last = cntlid;
        Some(cntlid)
    }

    pub(super) fn remove(&mut self, cntlid: u16) -> Option<Controller> {
        let index = self.table.binary_search_by_key(&cntlid, |one| one.cntlid).ok()?;
        Some(self.table.remove(index))
    }
}
