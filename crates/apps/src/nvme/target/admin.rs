//! Commands of a connected admin queue: admin commands, and Fabrics commands except Connect.

use wire::nvme::command::{AbortCommand, Command, Features, GetLogPage, admin, feature};
use wire::nvme::fabrics::Fabrics;
use wire::nvme::status::Status;

use super::features;
use super::log_pages;
use super::shared::{NvmeTargetState, PendingAbort};

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
    Failed(Status),
    /// Completed later: an event or an abort is pending.
    Pending,
}

impl From<Result<u64, Status>> for AdminResponse {
    fn from(result: Result<u64, Status>) -> Self {
        result.map_or_else(Self::Failed, Self::Value)
    }
}

impl From<Result<Vec<u8>, Status>> for AdminResponse {
    fn from(result: Result<Vec<u8>, Status>) -> Self {
        result.map_or_else(Self::Failed, Self::Data)
    }
}

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();
const NO_OPCODE: Status = Status::INVALID_OPCODE.do_not_retry();

/// Executes a Fabrics command of a connected admin queue.
pub(super) fn fabrics(
    shared: &mut NvmeTargetState,
    cntlid: u16,
    command: &Command,
) -> AdminResponse {
    let mqes = shared.config.queue_entries_max - 1;
    let opening = shared.is_opening();
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return AdminResponse::Failed(Status::INTERNAL);
    };
    match Fabrics::of(command) {
        Some(Fabrics::PropertyGet(get)) => controller.property(get, mqes, opening).into(),
        Some(Fabrics::PropertySet(set)) => controller.set_property(set).map(|()| 0).into(),
        // The queue is connected already.
        Some(Fabrics::Connect(_)) => AdminResponse::Failed(Status::COMMAND_SEQUENCE.do_not_retry()),
        // Disconnect is for I/O queues only (fabrics section 3.4).
        Some(Fabrics::Disconnect(_)) => {
            AdminResponse::Failed(Status::INVALID_QUEUE_TYPE.do_not_retry())
        }
        // In-band authentication is not supported.
        _ => AdminResponse::Failed(NO_OPCODE),
    }
}

/// Executes an admin command.
pub(super) fn admin(shared: &mut NvmeTargetState, cntlid: u16, command: &Command) -> AdminResponse {
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return AdminResponse::Failed(Status::INTERNAL);
    };
    if !controller.is_ready() {
        return AdminResponse::Failed(Status::COMMAND_SEQUENCE.do_not_retry());
    }
    let io = controller.subsystem.is_some();
    match command.opcode {
        admin::IDENTIFY => {
            let Some(controller) = shared.controllers.get(cntlid) else {
                return AdminResponse::Failed(Status::INTERNAL);
            };
            log_pages::identify(shared, controller, command).into()
        }
        admin::GET_LOG_PAGE => log_pages::log(shared, cntlid, &GetLogPage::of(command)).into(),
        admin::KEEP_ALIVE => AdminResponse::Value(0),
        admin::ASYNC_EVENT if controller.events.request(command.cid) => AdminResponse::Pending,
        admin::ASYNC_EVENT => AdminResponse::Failed(Status::ASYNC_EVENT_LIMIT.do_not_retry()),
        admin::SET_FEATURES => {
            let queues_max = shared.config.queues_max;
            features::set(controller, Features::of(command), queues_max).map(u64::from).into()
        }
        admin::GET_FEATURES => get_features(shared, cntlid, command),
        admin::ABORT if io => abort(shared, cntlid, command),
        _ => AdminResponse::Failed(NO_OPCODE),
    }
}

/// Queues an Abort (base section 5.1). It is executed after this turn, since its command may belong
/// to another connection.
fn abort(shared: &mut NvmeTargetState, cntlid: u16, command: &Command) -> AdminResponse {
    let controller = shared.controllers.get(cntlid);
    let Some((controller, admin)) = controller.and_then(|one| Some((one, one.queue(0)?))) else {
        return AdminResponse::Failed(Status::INTERNAL);
    };
    shared.counters.nvmet_aborts += 1;
    let open = shared.aborts.iter().filter(|abort| abort.admin == admin).count();
    if open > usize::from(ACL) {
        return AdminResponse::Failed(Status::ABORT_LIMIT.do_not_retry());
    }
    let asked = AbortCommand::from_command(command);
    let Some(queue) = controller.queue(asked.sqid) else {
        return AdminResponse::Value(NOT_ABORTED);
    };
    shared.aborts.push_back(PendingAbort { admin, cid: command.cid, queue, target: asked.cid });
    AdminResponse::Pending
}

/// Executes Get Features: returns a value, or the host identifier as data.
fn get_features(shared: &NvmeTargetState, cntlid: u16, command: &Command) -> AdminResponse {
    let Some(controller) = shared.controllers.get(cntlid) else {
        return AdminResponse::Failed(Status::INTERNAL);
    };
    let asked = Features::of(command);
    if asked.fid == feature::HOST_IDENTIFIER && controller.subsystem.is_some() {
        // EXHID: over Fabrics only 16-byte identifiers exist.
        return if asked.value & 1 == 1 {
            AdminResponse::Data(controller.hostid.to_vec())
        } else {
            AdminResponse::Failed(INVALID)
        };
    }
    features::get(controller, asked, shared.config.queues_max).map(u64::from).into()
}
