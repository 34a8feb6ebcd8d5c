//! Connect: which host comes to which controller, with which queue (fabrics, section 3.3).

use base::Instant;
use wire::nvme::command::Command;
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, Connect, ConnectData, ConnectResult, Fabrics, cattr, ipo,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::Status;

use super::controller::{Admission, ConnKey};
use super::shared::Shared;
use crate::nvme::channel::Identity;

/// A queue that was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) cntlid: u16,
    pub(super) qid: u16,
    /// Entries.
    pub(super) size: u16,
    /// Completions say how far the queue was taken.
    pub(super) flow_control: bool,
}

const SEQUENCE: ConnectResult = ConnectResult::Refused(Status::COMMAND_SEQUENCE.do_not_retry());

/// Does the first command of a connection, whose keys are those of `identity`.
///
/// # Errors
/// How the command fails.
pub(super) fn connect(
    now: Instant,
    shared: &mut Shared,
    (key, identity): (ConnKey, Option<Identity>),
    command: &Command,
    data: &[u8],
) -> Result<Connected, ConnectResult> {
    let Some(Fabrics::Connect(asked)) = Fabrics::of(command) else { return Err(SEQUENCE) };
    let refuse = |status: Status| ConnectResult::Refused(status.do_not_retry());
    let data: &[u8; CONNECT_DATA_BYTES] =
        data.try_into().map_err(|_| refuse(Status::SGL_LENGTH_INVALID))?;
    if asked.recfmt != 0 {
        return Err(refuse(Status::INCOMPATIBLE_FORMAT));
    }
    if asked.sqsize == 0 || asked.sqsize >= shared.config.queue_entries_max {
        return Err(ConnectResult::InvalidCommand(ipo::SQSIZE));
    }
    let data = ConnectData::parse(data);
    let subnqn = data.subnqn.ok_or(ConnectResult::InvalidData(ipo::SUBNQN))?;
    let hostnqn = data.hostnqn.ok_or(ConnectResult::InvalidData(ipo::HOSTNQN))?;
    // A key is one host's, and for one subsystem (tcp, section 3.6.1.3).
    if identity.is_some_and(|own| own != Identity { host: hostnqn, subsystem: subnqn }) {
        shared.counters.nvmet_refused_identity += 1;
        return Err(refuse(Status::INVALID_HOST));
    }
    let cntlid = if asked.qid == 0 {
        connect_admin(now, shared, key, &asked, (&data, subnqn, hostnqn))?
    } else {
        connect_io(shared, key, &asked, (&data, subnqn, hostnqn))?
    };
    Ok(Connected {
        cntlid,
        qid: asked.qid,
        size: asked.sqsize + 1,
        flow_control: asked.cattr & cattr::DISABLE_SQ_FLOW_CONTROL == 0,
    })
}

/// An admin queue: a new controller.
fn connect_admin(
    now: Instant,
    shared: &mut Shared,
    key: ConnKey,
    asked: &Connect,
    (data, subnqn, hostnqn): (&ConnectData, Nqn, Nqn),
) -> Result<u16, ConnectResult> {
    let subsystem = if subnqn.is_discovery() {
        None
    } else {
        let found = shared.subsystems.iter().position(|subsystem| subsystem.nqn == subnqn);
        Some(found.ok_or(ConnectResult::InvalidData(ipo::SUBNQN))?)
    };
    let admitted = subsystem
        .and_then(|index| shared.subsystems.get(index))
        .is_none_or(|subsystem| subsystem.admits(&hostnqn));
    if !admitted {
        return Err(ConnectResult::Refused(Status::INVALID_HOST.do_not_retry()));
    }
    // Controllers are dynamic: none can be named (fabrics, section 4.2).
    if data.cntlid != CNTLID_DYNAMIC {
        return Err(ConnectResult::InvalidData(ipo::CNTLID));
    }
    let busy = ConnectResult::Refused(Status::CONTROLLER_BUSY);
    if shared.controllers.len() >= shared.config.controllers_max {
        return Err(busy);
    }
    let admission = Admission { subsystem, hostnqn, hostid: data.hostid, kato: asked.kato };
    shared.counters.nvmet_controllers += 1;
    shared.controllers.create(now, admission, key).ok_or(busy)
}

/// An I/O queue of a controller that there is.
fn connect_io(
    shared: &mut Shared,
    key: ConnKey,
    asked: &Connect,
    (data, subnqn, hostnqn): (&ConnectData, Nqn, Nqn),
) -> Result<u16, ConnectResult> {
    let invalid = ConnectResult::InvalidData;
    let queues_max = shared.config.queues_max;
    if subnqn.is_discovery() {
        return Err(ConnectResult::InvalidCommand(ipo::QID));
    }
    let subsystem = shared.subsystems.iter().position(|subsystem| subsystem.nqn == subnqn);
    let subsystem = subsystem.ok_or_else(|| invalid(ipo::SUBNQN))?;
    let controller = shared.controllers.get_mut(data.cntlid).ok_or_else(|| invalid(ipo::CNTLID))?;
    if controller.subsystem != Some(subsystem) {
        return Err(invalid(ipo::SUBNQN));
    }
    // Another host's controller is none of this host's business.
    if controller.hostnqn != hostnqn {
        return Err(invalid(ipo::HOSTNQN));
    }
    if controller.hostid != data.hostid {
        return Err(invalid(ipo::HOSTID));
    }
    if !controller.is_ready() {
        return Err(SEQUENCE);
    }
    let granted = if controller.granted == 0 { queues_max } else { controller.granted };
    if asked.qid > granted {
        return Err(ConnectResult::InvalidCommand(ipo::QID));
    }
    if controller.queue(asked.qid).is_some() {
        return Err(SEQUENCE);
    }
    controller.add_queue(asked.qid, key);
    shared.counters.nvmet_queues += 1;
    Ok(data.cntlid)
}
