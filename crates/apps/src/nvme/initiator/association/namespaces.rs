//! Which namespaces the controller has, and what they are like.
//!
//! Part of the set-up, and done again when the controller says that something has changed.

use abi::aligned::AlignedBuf;
use wire::nvme::command::{Command, GetLogPage, Identify, NSID_ALL, admin};
use wire::nvme::identify::{self, Descriptor, NAMESPACES_MAX, cns};
use wire::nvme::log::{CHANGED_NAMESPACES_BYTES, lid};
use wire::nvme::status::Status;

use super::super::command::{Loss, Namespace};
use super::{Association, Cx, Progress, Step};

/// Most namespaces that are looked at.
const NAMESPACES_LIMIT: usize = 8 * NAMESPACES_MAX;

impl Association {
    /// Looks at the namespaces once more where they have changed, and nothing else is being asked;
    /// says whether it does.
    pub(super) fn look_again(&mut self, cx: &mut Cx<'_>) -> Result<bool, Loss> {
        if self.step != Step::Idle || !core::mem::take(&mut self.rescan) {
            return Ok(false);
        }
        // Reading the list makes room for the next event of the kind (base, section 5.2.1).
        let len = CHANGED_NAMESPACES_BYTES as u64;
        let page = GetLogPage { lid: lid::CHANGED_NAMESPACES, len, ..GetLogPage::default() };
        let command = page.put(Command::new(admin::GET_LOG_PAGE, 0, NSID_ALL));
        self.ask_for(cx, Step::ChangedLog, command, None)?;
        Ok(true)
    }

    /// Asks for the namespaces above one; from zero on, all is known anew.
    pub(super) fn list_namespaces(
        &mut self,
        cx: &mut Cx<'_>,
        above: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        if above == 0 {
            self.namespaces.clear();
            self.found.clear();
        }
        let identify = Identify { cns: cns::ACTIVE_NAMESPACES, ..Identify::default() };
        let command = identify.put(Command::new(admin::IDENTIFY, 0, above));
        self.ask_for(cx, Step::Namespaces, command, buffer)
    }

    /// A list has come: the next one, or the first namespace of it.
    pub(super) fn namespaces_listed(
        &mut self,
        cx: &mut Cx<'_>,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        let before = self.found.len();
        let last = self.found.back().copied().unwrap_or(0);
        // Ascending, as it has to be: so that every list ends.
        let ids = page.into_iter().flat_map(identify::namespaces);
        let mut above = last;
        for nsid in ids {
            if nsid > above {
                self.found.push_back(nsid);
                above = nsid;
            }
        }
        let full = self.found.len() - before == NAMESPACES_MAX;
        if full && self.found.len() < NAMESPACES_LIMIT {
            return self.list_namespaces(cx, above, buffer);
        }
        self.identify_namespace(cx, buffer)
    }

    /// Asks about the next namespace of the list.
    fn identify_namespace(
        &mut self,
        cx: &mut Cx<'_>,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        let Some(nsid) = self.found.pop_front() else {
            self.step = Step::Idle;
            // What was found is told even so: else one change after the other would hold it back.
            let again = self.look_again(cx)?;
            return Ok(match (self.live, again) {
                (true, _) => Progress::Namespaces,
                (false, true) => Progress::Nothing,
                (false, false) => self.check_live(),
            });
        };
        let identify = Identify { cns: cns::NAMESPACE, ..Identify::default() };
        let command = identify.put(Command::new(admin::IDENTIFY, 0, nsid));
        self.ask_for(cx, Step::Namespace(nsid), command, buffer)
    }

    /// A namespace has been described.
    pub(super) fn namespace_identified(
        &mut self,
        cx: &mut Cx<'_>,
        nsid: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        let said = page.map(identify::Namespace::parse);
        // One with metadata, or blocks of an odd size, cannot be used.
        let usable =
            |format: &identify::LbaFormat| format.metadata == 0 && (9..=16).contains(&format.shift);
        if let Some((said, format)) = said.and_then(|n| Some((n, n.format().filter(usable)?))) {
            let namespace = Namespace {
                nsid,
                blocks: said.nsze,
                shift: format.shift,
                nguid: said.nguid,
                eui64: said.eui64,
                uuid: [0; 16],
                write_protected: said.nsattr & 1 != 0,
            };
            self.namespaces.insert(nsid, namespace);
            let cns = cns::NAMESPACE_DESCRIPTORS;
            let identify = Identify { cns, ..Identify::default() };
            let command = identify.put(Command::new(admin::IDENTIFY, 0, nsid));
            return self.ask_for(cx, Step::Descriptors(nsid), command, buffer);
        }
        self.identify_namespace(cx, buffer)
    }

    /// The descriptors of a namespace have come: some targets, Linux's among them, say what names
    /// it nowhere else.
    pub(super) fn namespace_named(
        &mut self,
        cx: &mut Cx<'_>,
        nsid: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        if let Some(namespace) = self.namespaces.get_mut(&nsid) {
            for descriptor in page.into_iter().flat_map(Descriptor::parse_all) {
                match descriptor {
                    Descriptor::Uuid(uuid) => namespace.uuid = uuid,
                    Descriptor::Nguid(nguid) => namespace.nguid = nguid,
                    Descriptor::Eui64(eui64) => namespace.eui64 = eui64,
                    Descriptor::Csi(_) => {}
                }
            }
        }
        self.identify_namespace(cx, buffer)
    }

    /// A namespace was asked about in vain. Where it is gone, or of no use, the others are not.
    pub(super) fn namespace_refused(
        &mut self,
        cx: &mut Cx<'_>,
        step: Step,
        status: Status,
        buffer: Option<AlignedBuf>,
    ) -> Result<Progress, Loss> {
        let gone = status.code() == Status::INVALID_NAMESPACE;
        match step {
            Step::Descriptors(nsid) if gone => {
                self.namespaces.remove(&nsid);
                cx.counters.nvmei_namespaces_skipped += 1;
            }
            // Controllers before NVMe 1.3 have none.
            Step::Descriptors(_) if status.is_final() || status.code() == Status::INVALID_FIELD => {
            }
            Step::Namespace(_) if gone || status.is_final() => {
                cx.counters.nvmei_namespaces_skipped += 1;
            }
            _ => return Err(Loss::Refused { step: step.name(), status }),
        }
        self.identify_namespace(cx, buffer)
    }
}
