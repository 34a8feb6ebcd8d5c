//! The Connect command: admission of initiators to controllers and queues (fabrics section 3.3).

use base::Instant;
use wire::nvme::command::NvmeCommand;
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, ConnectResult, FabricsCommand,
    cattr, ipo,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::association::{AddedQueue, NewAssociationParams};
use super::common::{GroupConnId, TargetConnId};
use super::log::QuotedNqn;
use super::shared::NvmeTargetState;
use crate::nvme::channel::NvmePskIdentity;

/// Parameters of a connected queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectedQueueParams {
    pub(super) cntlid: u16,
    pub(super) qid: u16,
    /// Number of entries.
    pub(super) size: u16,
    /// Completions report the submission queue head.
    pub(super) flow_control: bool,
}

/// A refused Connect: the result for the initiator, and the reason for the log.
#[derive(Debug)]
pub(super) struct ConnectRefusal {
    pub(super) result: ConnectResult,
    pub(super) why: String,
}

impl ConnectRefusal {
    pub(super) fn new(result: ConnectResult, why: impl Into<String>) -> Self {
        Self { result, why: why.into() }
    }

    fn sequence(why: impl Into<String>) -> Self {
        Self::status(NvmeStatus::COMMAND_SEQUENCE, why)
    }

    fn status(status: NvmeStatus, why: impl Into<String>) -> Self {
        Self::new(ConnectResult::Refused(status.do_not_retry()), why)
    }

    /// Creates a refusal for an invalid field of the command, at `offset`.
    fn command(offset: u16, why: impl Into<String>) -> Self {
        Self::new(ConnectResult::InvalidCommand(offset), why)
    }

    /// Creates a refusal for an invalid field of the data, at `offset`.
    fn data(offset: u16, why: impl Into<String>) -> Self {
        Self::new(ConnectResult::InvalidData(offset), why)
    }
}

/// Executes the first command of a connection. `identity` is that of its pre-shared key, if it has
/// one.
///
/// # Errors
/// The result for the initiator, and the reason.
pub(super) fn connect(
    now: Instant,
    shared: &mut NvmeTargetState,
    (key, identity): (TargetConnId, Option<NvmePskIdentity>),
    command: &NvmeCommand,
    data: &[u8],
) -> Result<ConnectedQueueParams, ConnectRefusal> {
    let Some(FabricsCommand::Connect(asked)) = FabricsCommand::from_command(command) else {
        return Err(ConnectRefusal::sequence("first command is not Connect"));
    };
    let data: &[u8; CONNECT_DATA_BYTES] = data.try_into().map_err(|_| {
        let why = format!("{} bytes of data, expected {CONNECT_DATA_BYTES}", data.len());
        ConnectRefusal::status(NvmeStatus::SGL_LENGTH_INVALID, why)
    })?;
    if asked.recfmt != 0 {
        let why = format!("record format {}, expected 0", asked.recfmt);
        return Err(ConnectRefusal::status(NvmeStatus::INCOMPATIBLE_FORMAT, why));
    }
    let entries_max = shared.config.queue_entries_max;
    if asked.sqsize == 0 || asked.sqsize >= entries_max {
        let entries = u32::from(asked.sqsize) + 1;
        let why = format!("queue of {entries} entries, expected 2 to {entries_max}");
        return Err(ConnectRefusal::command(ipo::SQSIZE, why));
    }
    let data = ConnectData::parse(data);
    let no_name = |offset, of| ConnectRefusal::data(offset, format!("invalid {of} NQN"));
    let subnqn = data.subnqn.ok_or_else(|| no_name(ipo::SUBNQN, "subsystem"))?;
    let hostnqn = data.hostnqn.ok_or_else(|| no_name(ipo::HOSTNQN, "host"))?;
    // Zero is not a valid identifier (base section 5.27.1.25); Linux and SPDK never send it.
    if data.hostid == [0; 16] {
        return Err(ConnectRefusal::data(ipo::HOSTID, "host identifier is zero"));
    }
    // A key belongs to one host and one subsystem (tcp section 3.6.1.3).
    if let Some(own) =
        identity.filter(|own| *own != NvmePskIdentity { host: hostnqn, subsystem: subnqn })
    {
        shared.counters.nvmet_refused_identity += 1;
        let (host, subsystem) = (QuotedNqn(&own.host), QuotedNqn(&own.subsystem));
        let why = format!("pre-shared key belongs to host {host} and subsystem {subsystem}");
        return Err(ConnectRefusal::status(NvmeStatus::INVALID_HOST, why));
    }
    let cntlid = if asked.qid == 0 {
        connect_admin(now, shared, key, &asked, (&data, subnqn, hostnqn))?
    } else {
        connect_io(shared, key, &asked, (&data, subnqn, hostnqn))?
    };
    Ok(ConnectedQueueParams {
        cntlid,
        qid: asked.qid,
        size: asked.sqsize + 1,
        flow_control: asked.cattr & cattr::DISABLE_SQ_FLOW_CONTROL == 0,
    })
}

/// Connects an admin queue, which creates a controller.
fn connect_admin(
    now: Instant,
    shared: &mut NvmeTargetState,
    key: TargetConnId,
    asked: &ConnectCommand,
    (data, subnqn, hostnqn): (&ConnectData, Nqn, Nqn),
) -> Result<u16, ConnectRefusal> {
    let subsystem = if subnqn.is_discovery() {
        None
    } else {
        let found = shared.subsystems.iter().position(|subsystem| subsystem.nqn == subnqn);
        Some(found.ok_or_else(|| ConnectRefusal::data(ipo::SUBNQN, "no such subsystem"))?)
    };
    let admitted = subsystem
        .and_then(|index| shared.subsystems.get(index))
        .is_none_or(|subsystem| subsystem.admits(&hostnqn));
    if !admitted {
        return Err(ConnectRefusal::status(
            NvmeStatus::INVALID_HOST,
            "host is not in the list of allowed hosts",
        ));
    }
    // The dynamic controller model: no specific controller can be requested (fabrics section 4.2).
    if data.cntlid != CNTLID_DYNAMIC {
        let why = format!("controller {:#x} requested, expected 0xffff (dynamic)", data.cntlid);
        return Err(ConnectRefusal::data(ipo::CNTLID, why));
    }
    let most = shared.config.controllers_max;
    let busy = || {
        let result = ConnectResult::Refused(NvmeStatus::CONTROLLER_BUSY);
        ConnectRefusal::new(result, format!("limit of {most} controllers reached"))
    };
    let params = NewAssociationParams { subsystem, hostnqn, hostid: data.hostid };
    let association = {
        let mut all = shared.member.associations();
        if all.len() >= most {
            return Err(busy());
        }
        let admin = GroupConnId { queue: shared.member.queue(), conn: key };
        all.create(now, params, admin, shared.member.queues()).ok_or_else(busy)?
    };
    shared.counters.nvmet_controllers += 1;
    let cntlid = association.cntlid;
    if let Some(controller) = shared.controllers.join(association, Some(key)) {
        controller.set_kato(asked.kato);
    }
    Ok(cntlid)
}

/// Connects an I/O queue of an existing controller.
fn connect_io(
    shared: &mut NvmeTargetState,
    key: TargetConnId,
    asked: &ConnectCommand,
    (data, subnqn, hostnqn): (&ConnectData, Nqn, Nqn),
) -> Result<u16, ConnectRefusal> {
    let (cntlid, qid) = (data.cntlid, asked.qid);
    let queues_max = shared.config.queues_max;
    if subnqn.is_discovery() {
        return Err(ConnectRefusal::command(
            ipo::QID,
            "the discovery controller has no I/O queues",
        ));
    }
    let subsystem = shared.subsystems.iter().position(|subsystem| subsystem.nqn == subnqn);
    let subsystem =
        subsystem.ok_or_else(|| ConnectRefusal::data(ipo::SUBNQN, "no such subsystem"))?;
    // If the association ends from now on, its home reports that by mail.
    let association = shared.member.associations().get(cntlid);
    let association = association.ok_or_else(|| {
        ConnectRefusal::data(ipo::CNTLID, format!("no such controller: {cntlid:#x}"))
    })?;
    if association.subsystem != Some(subsystem) {
        let why = format!("controller {cntlid} belongs to another subsystem");
        return Err(ConnectRefusal::data(ipo::SUBNQN, why));
    }
    // Another host's controller is refused. Hosts are told apart by NQN, as in SPDK: some
    // initiators send another host identifier with each Connect, and that of the admin queue is
    // used.
    if association.hostnqn != hostnqn {
        let (owner, hostnqn) = (QuotedNqn(&association.hostnqn), QuotedNqn(&hostnqn));
        let why = format!("controller {cntlid} belongs to host {owner}, not {hostnqn}");
        return Err(ConnectRefusal::data(ipo::HOSTNQN, why));
    }
    if !association.is_ready() {
        return Err(ConnectRefusal::sequence(format!("controller {cntlid} is not enabled")));
    }
    let conn = GroupConnId { queue: shared.member.queue(), conn: key };
    match association.add_queue(qid, conn, queues_max) {
        AddedQueue::Added => {}
        AddedQueue::Exceeds(granted) => {
            let why = format!("queue {qid} exceeds the {granted} queues of controller {cntlid}");
            return Err(ConnectRefusal::command(ipo::QID, why));
        }
        AddedQueue::Taken => {
            let why = format!("queue {qid} of controller {cntlid} is already connected");
            return Err(ConnectRefusal::sequence(why));
        }
    }
    shared.controllers.join(association, None);
    shared.counters.nvmet_queues += 1;
    Ok(cntlid)
}
