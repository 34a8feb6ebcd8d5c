//! Controllers. A controller is one association of an initiator with a subsystem; it exists from
//! the Connect of its admin queue to the end of that connection (fabrics section 1.5).
//!
//! Each queue of the target has an entry for a controller that has a connection there; the entry of
//! the admin connection's queue, its home, is the only one that admin commands use. What all
//! entries share is in [`super::association`]. This module accesses no connection. Commands about a
//! controller are executed in `admin`, `features` and `pages`.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Duration, Instant};
use wire::nvme::command::{AsyncEvent, events};
use wire::nvme::fabrics::{
    ControllerCapabilities, ControllerConfiguration, ControllerStatus, PropertyGet, PropertySet,
    ShutdownNotification, ShutdownStatus, property, version,
};
use wire::nvme::status::NvmeStatus;

use super::association::Association;
use super::buffer_quota::BufferQuota;
use super::common::TargetConnId;
use super::features::FeatureValues;

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
    pub(super) association: Arc<Association>,
    /// The admin connection, if it is on this queue of the target.
    pub(super) admin: Option<TargetConnId>,
    configuration: ControllerConfiguration,
    status: ControllerStatus,
    /// Keep alive timeout in milliseconds; zero if disabled.
    kato: u32,
    values: FeatureValues,
    pub(super) events: AsyncEventState,
    /// Abort commands about commands on other queues of the target, which have not answered.
    pub(super) remote_aborts: usize,
    /// Memory of this queue of the target.
    pub(super) quota: BufferQuota,
}

impl Controller {
    fn new(association: Arc<Association>, admin: Option<TargetConnId>) -> Self {
        Self {
            association,
            admin,
            configuration: ControllerConfiguration::default(),
            status: ControllerStatus::default(),
            kato: 0,
            values: FeatureValues::default(),
            events: AsyncEventState::default(),
            remote_aborts: 0,
            quota: BufferQuota::default(),
        }
    }

    /// Returns the values of features.
    pub(super) const fn values(&self) -> &FeatureValues {
        &self.values
    }

    /// Changes the values of features.
    pub(super) fn set_values(&mut self, change: impl FnOnce(&mut FeatureValues)) {
        change(&mut self.values);
        self.association.set_writes_through(!self.values.write_cache);
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
        (self.kato > 0)
            .then(|| self.association.last_command() + Duration::from_millis(u64::from(self.kato)))
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
            let entries =
                self.association.subsystem.is_none() || (new.iosqes, new.iocqes) == (6, 4);
            let shutdown = ShutdownStatus::Normal;
            let good = known && entries;
            self.status = ControllerStatus { ready: good, fatal: !good, shutdown };
        } else if !new.enable && old.enable {
            // Controller reset: features return to their defaults, queues stay connected.
            self.status = ControllerStatus::default();
            self.set_values(|values| *values = FeatureValues::default());
            self.events.enabled = 0;
        }
        if !matches!(new.shutdown, ShutdownNotification::None) && old.shutdown != new.shutdown {
            // Written data is at the disk already, so shutdown completes at once.
            self.status.shutdown = ShutdownStatus::Complete;
        }
        let normal = matches!(self.status.shutdown, ShutdownStatus::Normal);
        self.association.set_ready(self.status.ready && normal);
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

/// The controllers that have connections on this queue of the target.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    /// Sorted by identifier, for binary search.
    table: Vec<Controller>,
}

impl Controllers {
    /// Returns the number of controllers whose home is here.
    pub(super) fn len(&self) -> usize {
        self.table.iter().filter(|one| one.admin.is_some()).count()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Controller> {
        self.table.iter_mut()
    }

    fn index(&self, cntlid: u16) -> Result<usize, usize> {
        self.table.binary_search_by_key(&cntlid, |one| one.association.cntlid)
    }

    pub(super) fn get(&self, cntlid: u16) -> Option<&Controller> {
        self.table.get(self.index(cntlid).ok()?)
    }

    pub(super) fn get_mut(&mut self, cntlid: u16) -> Option<&mut Controller> {
        let index = self.index(cntlid).ok()?;
        self.table.get_mut(index)
    }

    /// Adds the entry of an association, unless it exists: for its admin connection, or for the
    /// first of its I/O connections here. Returns the entry.
    pub(super) fn join(
        &mut self,
        association: Arc<Association>,
        admin: Option<TargetConnId>,
    ) -> Option<&mut Controller> {
        let index = self.index(association.cntlid).unwrap_or_else(|index| {
            self.table.insert(index, Controller::new(association, admin));
            index
        });
        self.table.get_mut(index)
    }

    pub(super) fn remove(&mut self, cntlid: u16) -> Option<Controller> {
        let index = self.index(cntlid).ok()?;
        Some(self.table.remove(index))
    }
}
