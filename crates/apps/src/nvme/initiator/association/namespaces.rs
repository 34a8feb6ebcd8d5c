//! Reading of the controller's namespaces, during the set-up and again after each change.

use abi::aligned::AlignedBuf;
use wire::nvme::command::{GetLogPage, IdentifyCommand, NSID_ALL, NvmeCommand, admin};
use wire::nvme::identify::{self, NAMESPACES_MAX, NamespaceDescriptor, cns};
use wire::nvme::log::{CHANGED_NAMESPACES_BYTES, lid};
use wire::nvme::status::NvmeStatus;

use super::super::command::{AssociationLoss, InitiatorNamespace};
use super::{Association, AssociationEnv, AssociationEvent, AssociationSetupStep};

/// Maximum number of namespaces that are read.
const NAMESPACES_LIMIT: usize = 8 * NAMESPACES_MAX;

impl Association {
    /// Starts to read the namespaces again if they have changed and no other step is in progress.
    /// Returns whether it does.
    pub(super) fn rescan_namespaces(
        &mut self,
        cx: &mut AssociationEnv<'_>,
    ) -> Result<bool, AssociationLoss> {
        if self.step != AssociationSetupStep::Idle || !core::mem::take(&mut self.rescan) {
            return Ok(false);
        }
        // Reading the changed namespace list re-arms the event (base section 5.2.1).
        let len = CHANGED_NAMESPACES_BYTES as u64;
        let page = GetLogPage { lid: lid::CHANGED_NAMESPACES, len, ..GetLogPage::default() };
        let command = page.encode_into(NvmeCommand::new(admin::GET_LOG_PAGE, 0, NSID_ALL));
        self.send_step_with_buffer(cx, AssociationSetupStep::ChangedLog, command, None)?;
        Ok(true)
    }

    /// Requests the list of namespace IDs above `above`; zero starts from the beginning.
    pub(super) fn list_namespaces(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        above: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        if above == 0 {
            self.namespaces.clear();
            self.listed_nsids.clear();
        }
        let identify =
            IdentifyCommand { cns: cns::ACTIVE_NAMESPACES, ..IdentifyCommand::default() };
        let command = identify.encode_into(NvmeCommand::new(admin::IDENTIFY, 0, above));
        self.send_step_with_buffer(cx, AssociationSetupStep::Namespaces, command, buffer)
    }

    /// Handles a list: requests the next part, or identifies the first namespace.
    pub(super) fn namespaces_listed(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        let before = self.listed_nsids.len();
        let last = self.listed_nsids.back().copied().unwrap_or(0);
        // Only ascending IDs are accepted, so that the requests end.
        let ids = page.into_iter().flat_map(identify::namespaces);
        let mut above = last;
        for nsid in ids {
            if nsid > above {
                self.listed_nsids.push_back(nsid);
                above = nsid;
            }
        }
        let full = self.listed_nsids.len() - before == NAMESPACES_MAX;
        if full && self.listed_nsids.len() < NAMESPACES_LIMIT {
            return self.list_namespaces(cx, above, buffer);
        }
        self.identify_namespace(cx, buffer)
    }

    /// Identifies the next namespace of the list.
    fn identify_namespace(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let Some(nsid) = self.listed_nsids.pop_front() else {
            self.step = AssociationSetupStep::Idle;
            // Report the namespaces even if another change is pending: continuous changes would
            // otherwise delay the report forever.
            let again = self.rescan_namespaces(cx)?;
            return Ok(match (self.live, again) {
                (true, _) => AssociationEvent::Namespaces,
                (false, true) => AssociationEvent::Nothing,
                (false, false) => self.check_live(),
            });
        };
        let identify = IdentifyCommand { cns: cns::NAMESPACE, ..IdentifyCommand::default() };
        let command = identify.encode_into(NvmeCommand::new(admin::IDENTIFY, 0, nsid));
        self.send_step_with_buffer(cx, AssociationSetupStep::Namespace(nsid), command, buffer)
    }

    /// Handles Identify Namespace.
    pub(super) fn namespace_identified(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        nsid: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        let said = page.map(identify::IdentifyNamespace::parse);
        // Formats with metadata or an unusual block size are not supported.
        let usable =
            |format: &identify::LbaFormat| format.metadata == 0 && (9..=16).contains(&format.shift);
        if let Some((said, format)) = said.and_then(|n| Some((n, n.format().filter(usable)?))) {
            let namespace = InitiatorNamespace {
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
            let identify = IdentifyCommand { cns, ..IdentifyCommand::default() };
            let command = identify.encode_into(NvmeCommand::new(admin::IDENTIFY, 0, nsid));
            return self.send_step_with_buffer(
                cx,
                AssociationSetupStep::Descriptors(nsid),
                command,
                buffer,
            );
        }
        self.identify_namespace(cx, buffer)
    }

    /// Handles the namespace's identification descriptors. Some targets, Linux's included, report
    /// the UUID only there.
    pub(super) fn descriptors_received(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        nsid: u32,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let page = buffer.as_ref().and_then(|page| page.as_slice().first_chunk());
        if let Some(namespace) = self.namespaces.get_mut(&nsid) {
            for descriptor in page.into_iter().flat_map(NamespaceDescriptor::parse_all) {
                match descriptor {
                    NamespaceDescriptor::Uuid(uuid) => namespace.uuid = uuid,
                    NamespaceDescriptor::Nguid(nguid) => namespace.nguid = nguid,
                    NamespaceDescriptor::Eui64(eui64) => namespace.eui64 = eui64,
                    NamespaceDescriptor::Csi(_) => {}
                }
            }
        }
        self.identify_namespace(cx, buffer)
    }

    /// Handles a failed command about a namespace: skips a namespace that is gone or unusable.
    pub(super) fn namespace_refused(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        step: AssociationSetupStep,
        status: NvmeStatus,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let gone = status.code() == NvmeStatus::INVALID_NAMESPACE;
        match step {
            AssociationSetupStep::Descriptors(nsid) if gone => {
                self.namespaces.remove(&nsid);
                cx.counters.nvmei_namespaces_skipped += 1;
            }
            // Controllers before NVMe 1.3 have no descriptors.
            AssociationSetupStep::Descriptors(_)
                if status.is_final() || status.code() == NvmeStatus::INVALID_FIELD => {}
            AssociationSetupStep::Namespace(_) if gone || status.is_final() => {
                cx.counters.nvmei_namespaces_skipped += 1;
            }
            _ => return Err(AssociationLoss::Refused { step: step.name(), status }),
        }
        self.identify_namespace(cx, buffer)
    }
}
