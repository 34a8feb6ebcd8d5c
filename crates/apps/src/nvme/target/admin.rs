//! Commands of a connected admin queue: admin commands, and Fabrics commands except Connect.

use wire::nvme::command::{AbortCommand, FeaturesCommand, GetLogPage, NvmeCommand, admin, feature};
use wire::nvme::fabrics::FabricsCommand;
use wire::nvme::status::NvmeStatus;

use super::common::{GroupConnId, PendingAbort};
use super::features;
use super::group::TargetMail;
use super::log_pages;
use super::shared::NvmeTargetState;

/// ACL: largest number of concurrent Abort commands, minus one.
pub(super) const ACL: u8 = 3;
/// Dword 0 of the completion of an Abort whose command was not aborted.
pub(super) const NOT_ABORTED: u64 = 1;

/// Response to an admin command.
#[derive(Debug)]
pub(super) enum AdminResponse {
    /// Success, with this value in dwords 0 and 1.
    Value(u64),
    /// Success, with data.
    Data(Vec<u8>),
    Failed(NvmeStatus),
    /// Completed later: an event or an abort is pending.
    Pending,
}

impl From<Result<u64, NvmeStatus>> for AdminResponse {
    fn from(result: Result<u64, NvmeStatus>) -> Self {
        result.map_or_else(Self::Failed, Self::Value)
    }
}

impl From<Result<Vec<u8>, NvmeStatus>> for AdminResponse {
    fn from(result: Result<Vec<u8>, NvmeStatus>) -> Self {
        result.map_or_else(Self::Failed, Self::Data)
    }
}

const INVALID: NvmeStatus = NvmeStatus::INVALID_FIELD.do_not_retry();
const NO_OPCODE: NvmeStatus = NvmeStatus::INVALID_OPCODE.do_not_retry();

/// Executes a Fabrics command of a connected admin queue.
pub(super) fn fabrics(
    shared: &mut NvmeTargetState,
    cntlid: u16,
    command: &NvmeCommand,
) -> AdminResponse {
    let mqes = shared.config.queue_entries_max - 1;
    let opening = shared.is_opening();
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return AdminResponse::Failed(NvmeStatus::INTERNAL);
    };
    match FabricsCommand::from_command(command) {
        Some(FabricsCommand::PropertyGet(get)) => controller.property(get, mqes, opening).into(),
        Some(FabricsCommand::PropertySet(set)) => controller.set_property(set).map(|()| 0).into(),
        // The queue is connected already.
        Some(FabricsCommand::Connect(_)) => {
            AdminResponse::Failed(NvmeStatus::COMMAND_SEQUENCE.do_not_retry())
        }
        // Disconnect is for I/O queues only (fabrics section 3.4).
        Some(FabricsCommand::Disconnect(_)) => {
            AdminResponse::Failed(NvmeStatus::INVALID_QUEUE_TYPE.do_not_retry())
        }
        // In-band authentication is not supported.
        _ => AdminResponse::Failed(NO_OPCODE),
    }
}

/// Executes an admin command.
pub(super) fn admin(
    shared: &mut NvmeTargetState,
    cntlid: u16,
    command: &NvmeCommand,
) -> AdminResponse {
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return AdminResponse::Failed(NvmeStatus::INTERNAL);
    };
    if !controller.association.is_ready() {
        return AdminResponse::Failed(NvmeStatus::COMMAND_SEQUENCE.do_not_retry());
    }
    let io = controller.association.subsystem.is_some();
    match command.opcode {
        admin::IDENTIFY => {
            let Some(controller) = shared.controllers.get(cntlid) else {
                return AdminResponse::Failed(NvmeStatus::INTERNAL);
            };
            log_pages::identify(shared, controller, command).into()
        }
        admin::GET_LOG_PAGE => {
            log_pages::log(shared, cntlid, &GetLogPage::from_command(command)).into()
        }
        admin::KEEP_ALIVE => AdminResponse::Value(0),
        admin::ASYNC_EVENT if controller.events.request(command.cid) => AdminResponse::Pending,
        admin::ASYNC_EVENT => AdminResponse::Failed(NvmeStatus::ASYNC_EVENT_LIMIT.do_not_retry()),
        admin::SET_FEATURES => {
            let queues_max = shared.config.queues_max;
            features::set(controller, FeaturesCommand::from_command(command), queues_max)
                .map(u64::from)
                .into()
        }
        admin::GET_FEATURES => get_features(shared, cntlid, command),
        admin::ABORT if io => abort(shared, cntlid, command),
        _ => AdminResponse::Failed(NO_OPCODE),
    }
}

/// Queues an Abort (base section 5.1). It is executed after this turn, since its command may belong
/// to another connection, or by another queue of the target, which answers by mail.
fn abort(shared: &mut NvmeTargetState, cntlid: u16, command: &NvmeCommand) -> AdminResponse {
    let controller = shared.controllers.get_mut(cntlid);
    let Some((controller, admin)) = controller.and_then(|one| one.admin.map(|admin| (one, admin)))
    else {
        return AdminResponse::Failed(NvmeStatus::INTERNAL);
    };
    shared.counters.nvmet_aborts += 1;
    let here = shared.aborts.iter().filter(|abort| abort.admin == admin).count();
    let open = here + controller.remote_aborts;
    if open > usize::from(ACL) {
        return AdminResponse::Failed(NvmeStatus::ABORT_LIMIT.do_not_retry());
    }
    let asked = AbortCommand::from_command(command);
    let Some(GroupConnId { queue, conn }) = controller.association.queue(asked.sqid) else {
        return AdminResponse::Value(NOT_ABORTED);
    };
    let (cid, target) = (command.cid, asked.cid);
    let abort = PendingAbort { cntlid, admin, cid, queue: conn, target };
    if queue == shared.member.queue() {
        shared.aborts.push_back(abort);
    } else {
        controller.remote_aborts += 1;
        let from = shared.member.queue();
        shared.member.send(queue, TargetMail::Abort { from, abort });
    }
    AdminResponse::Pending
}

/// Executes Get Features: returns a value, or the host identifier as data.
fn get_features(shared: &NvmeTargetState, cntlid: u16, command: &NvmeCommand) -> AdminResponse {
    let Some(controller) = shared.controllers.get(cntlid) else {
        return AdminResponse::Failed(NvmeStatus::INTERNAL);
    };
    let asked = FeaturesCommand::from_command(command);
    if asked.fid == feature::HOST_IDENTIFIER && controller.association.subsystem.is_some() {
        // EXHID: over Fabrics only 16-byte identifiers exist.
        return if asked.value & 1 == 1 {
            AdminResponse::Data(controller.association.hostid.to_vec())
        } else {
            AdminResponse::Failed(INVALID)
        };
    }
    features::get(controller, asked, shared.config.queues_max).map(u64::from).into()
}
