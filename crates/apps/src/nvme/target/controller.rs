//! Controllers: what a host's association with a subsystem is, from its admin connect on to the end
//! of that connection (fabrics, section 1.5).
//!
//! No connection is touched here. Commands about a controller are answered in `admin`, `features`
//! and `pages`.

use std::collections::VecDeque;

use base::{Duration, Instant};
use wire::nvme::command::{AsyncEvent, events};
use wire::nvme::fabrics::{
    CNTLID_MAX, Capabilities, Configuration, ControllerStatus, PropertyGet, PropertySet, Shutdown,
    ShutdownStatus, property, version,
};
use wire::nvme::log::ErrorEntry;
use wire::nvme::nqn::Nqn;
use wire::nvme::status::Status;

use super::features::Values;
use super::shares::Share;

/// Names a connection of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnKey {
    pub(super) index: usize,
    pub(super) serial: u32,
}

/// Entries that the error log keeps: one more than ELPE.
pub(super) const ERRORS_MAX: u8 = 16;
/// Asynchronous event requests at one time: one more than AERL.
pub(super) const EVENT_REQUESTS_MAX: u8 = 4;
/// Granularity of the keep alive timer, in milliseconds: KAS in units of 100 ms.
pub(super) const KEEP_ALIVE_MS: u32 = 100;
/// Version that controllers say: 1.4.
pub(super) const VERSION: u32 = version::V1_4;

/// Asynchronous events (base, section 5.2): each kind is reported once, until its log was read.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Commands that wait for one.
    requests: VecDeque<u16>,
    /// Which ones the host wants: [`events`].
    pub(super) wanted: u32,
    /// Those that came and are not reported, and those that are reported and not read.
    namespaces: Report,
    discovery: Report,
    /// Namespaces that have changed since the log was read; more than it has room for are not kept.
    pub(super) changed: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Report {
    #[default]
    Nothing,
    Due,
    Sent,
}

impl Events {
    /// Keeps a request; not where there are too many.
    pub(super) fn request(&mut self, cid: u16) -> bool {
        let room = self.requests.len() < usize::from(EVENT_REQUESTS_MAX);
        if room {
            self.requests.push_back(cid);
        }
        room
    }

    /// Gives a request up; says whether there was such.
    pub(super) fn cancel(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|open| *open != cid);
        self.requests.len() < before
    }

    /// A namespace has come, or changed.
    pub(super) fn note_namespace(&mut self, nsid: u32) {
        if !self.changed.contains(&nsid) && self.changed.len() <= CHANGED_MAX {
            self.changed.push(nsid);
        }
        if self.wanted & events::NAMESPACES != 0 && self.namespaces == Report::Nothing {
            self.namespaces = Report::Due;
        }
    }

    /// What can be discovered has changed.
    pub(super) fn note_discovery(&mut self) {
        if self.wanted & events::DISCOVERY != 0 && self.discovery == Report::Nothing {
            self.discovery = Report::Due;
        }
    }

    /// The log of changed namespaces was read, and the next change is reported.
    pub(super) fn read_namespaces(&mut self) {
        self.changed.clear();
        self.namespaces = Report::Nothing;
    }

    /// The discovery log was read, and the next change is reported.
    pub(super) fn read_discovery(&mut self) {
        self.discovery = Report::Nothing;
    }

    /// The next event, and the command that it ends.
    pub(super) fn poll(&mut self) -> Option<(u16, AsyncEvent)> {
        let (report, event) = match (self.namespaces, self.discovery) {
            (Report::Due, _) => (&mut self.namespaces, AsyncEvent::NAMESPACE_CHANGED),
            (_, Report::Due) => (&mut self.discovery, AsyncEvent::DISCOVERY_CHANGED),
            _ => return None,
        };
        let cid = self.requests.pop_front()?;
        *report = Report::Sent;
        Some((cid, event))
    }
}

/// Most changed namespaces that their log names.
pub(super) const CHANGED_MAX: usize = 1024;

/// A controller.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) cntlid: u16,
    /// Which subsystem; none is the discovery subsystem.
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
    configuration: Configuration,
    status: ControllerStatus,
    /// Keep alive time-out in milliseconds; zero for none.
    kato: u32,
    /// When the host was heard last.
    pub(super) heard: Instant,
    /// By queue ID: the admin queue is the first.
    queues: Vec<Option<ConnKey>>,
    /// I/O queues that the host may connect.
    pub(super) granted: u16,
    pub(super) values: Values,
    pub(super) events: Events,
    /// The newest first.
    pub(super) errors: VecDeque<ErrorEntry>,
    pub(super) error_count: u64,
    pub(super) share: Share,
}

impl Controller {
    /// Whether I/O commands, and admin commands but Fabrics', can be done.
    pub(super) const fn is_ready(&self) -> bool {
        self.status.ready && matches!(self.status.shutdown, ShutdownStatus::Normal)
    }

    /// Keep alive time-out in milliseconds.
    pub(super) const fn kato(&self) -> u32 {
        self.kato
    }

    /// Sets it, rounded up to what the timer can do; zero is none.
    pub(super) fn set_kato(&mut self, ms: u32) {
        self.kato = ms.div_ceil(KEEP_ALIVE_MS).saturating_mul(KEEP_ALIVE_MS);
    }

    /// When the host has been silent for too long (base, section 3.9); any command counts, on any
    /// queue.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.kato > 0).then(|| self.heard + Duration::from_millis(u64::from(self.kato)))
    }

    /// The connection of a queue.
    pub(super) fn queue(&self, qid: u16) -> Option<ConnKey> {
        self.queues.get(usize::from(qid)).copied().flatten()
    }

    /// Takes a queue in, whose ID is free.
    pub(super) fn add_queue(&mut self, qid: u16, key: ConnKey) {
        let index = usize::from(qid);
        if self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        if let Some(queue) = self.queues.get_mut(index) {
            *queue = Some(key);
        }
    }

    /// A queue's connection is gone.
    pub(super) fn remove_queue(&mut self, qid: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(qid)) {
            *queue = None;
        }
    }

    /// I/O queues that are connected.
    pub(super) fn io_queues(&self) -> impl Iterator<Item = ConnKey> + '_ {
        self.queues.iter().skip(1).copied().flatten()
    }

    /// Property Get. `opening`: namespaces are being opened. A host that came back to a target
    /// which has just started would take them for gone: it is told to wait (CSTS.RDY).
    ///
    /// # Errors
    /// Offsets that fabrics do not have, and the wrong size.
    pub(super) fn property(
        &self,
        get: PropertyGet,
        mqes: u16,
        opening: bool,
    ) -> Result<u64, Status> {
        let ready = self.status.ready && !opening;
        let status = ControllerStatus { ready, ..self.status };
        Ok(match (get.offset, get.attribute) {
            (property::CAP, 1) => capabilities(mqes).to_value(),
            (property::VS, 0) => u64::from(VERSION),
            (property::CC, 0) => u64::from(self.configuration.to_value()),
            (property::CSTS, 0) => u64::from(status.to_value()),
            _ => return Err(Status::INVALID_FIELD.do_not_retry()),
        })
    }

    /// Property Set, of which there is only CC.
    ///
    /// # Errors
    /// Other offsets, and the wrong size.
    pub(super) fn set_property(&mut self, set: PropertySet) -> Result<(), Status> {
        let value = match (set.offset, set.attribute) {
            (property::CC, 0) => u32::try_from(set.value).ok(),
            _ => None,
        };
        let value = value.ok_or(Status::INVALID_FIELD.do_not_retry())?;
        self.configure(Configuration::from_value(value));
        Ok(())
    }

    /// CC was written (base, section 3.1.3.5).
    fn configure(&mut self, new: Configuration) {
        let old = core::mem::replace(&mut self.configuration, new);
        if new.enable && !old.enable {
            // Only what CAP has: the NVM command set, pages of 4 KiB, round robin.
            let known = matches!(new.css, 0 | 6) && new.mps == 0 && new.ams == 0;
            let entries = self.subsystem.is_none() || (new.iosqes, new.iocqes) == (6, 4);
            let shutdown = ShutdownStatus::Normal;
            let good = known && entries;
            self.status = ControllerStatus { ready: good, fatal: !good, shutdown };
        } else if !new.enable && old.enable {
            // Controller reset: what the host has set is gone, its queues stay.
            self.status = ControllerStatus::default();
            self.values = Values::default();
            self.events.wanted = 0;
        }
        if !matches!(new.shutdown, Shutdown::None) && old.shutdown != new.shutdown {
            // What was written is the disk's: there is nothing to wait for.
            self.status.shutdown = ShutdownStatus::Complete;
        }
    }

    /// Notes a command that failed.
    pub(super) fn note_error(&mut self, sqid: u16, cid: u16, status: Status) {
        self.error_count += 1;
        self.errors.truncate(usize::from(ERRORS_MAX) - 1);
        let (location, lba, nsid) = (u16::MAX, 0, 0);
        let count = self.error_count;
        self.errors.push_front(ErrorEntry { count, sqid, cid, status, location, lba, nsid });
    }
}

/// CAP. A time-out of 5 s: enabling takes no time at all.
fn capabilities(mqes: u16) -> Capabilities {
    Capabilities {
        mqes,
        contiguous: true,
        timeout: 10,
        css: 1,
        mpsmin: 0,
        mpsmax: 0,
        ready_modes: 0,
    }
}

/// Who makes a controller.
pub(super) struct Admission {
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
    pub(super) kato: u32,
}

/// The table of controllers.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    /// By identifier, ascending; few, and looked up by binary search.
    table: Vec<Controller>,
    /// The identifier that was given last: a new one is not an old one's as long as possible.
    last: u16,
}

impl Controllers {
    /// Controllers that there are.
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

    /// Makes a controller for a new admin queue; none where no identifier is free.
    pub(super) fn create(
        &mut self,
        now: Instant,
        admission: Admission,
        admin: ConnKey,
    ) -> Option<u16> {
        let free = |id: &u16| self.table.binary_search_by_key(id, |one| one.cntlid).is_err();
        let next = (self.last + 1..=CNTLID_MAX).chain(1..=self.last);
        let cntlid = { next }.find(free)?;
        let mut controller = Controller {
            cntlid,
            subsystem: admission.subsystem,
            hostnqn: admission.hostnqn,
            hostid: admission.hostid,
            configuration: Configuration::default(),
            status: ControllerStatus::default(),
            kato: 0,
            heard: now,
            queues: vec![Some(admin)],
            granted: 0,
            values: Values::default(),
            events: Events::default(),
            errors: VecDeque::new(),
            error_count: 0,
            share: Share::default(),
        };
        controller.set_kato(admission.kato);
        let place = self.table.partition_point(|one| one.cntlid < cntlid);
        self.table.insert(place, controller);
        self.last = cntlid;
        Some(cntlid)
    }

    /// Takes a controller out.
    pub(super) fn remove(&mut self, cntlid: u16) -> Option<Controller> {
        let index = self.table.binary_search_by_key(&cntlid, |one| one.cntlid).ok()?;
        Some(self.table.remove(index))
    }
}
