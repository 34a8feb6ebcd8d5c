//! Commands of the admin queue, and Fabrics commands on it, but for Connect.

use wire::nvme::command::{Abort, Command, Features, GetLogPage, admin, feature};
use wire::nvme::fabrics::Fabrics;
use wire::nvme::status::Status;

use super::features;
use super::pages;
use super::shared::{Aborting, Shared};

/// One less than the most aborts at one time.
pub(super) const ACL: u8 = 3;
/// Dword 0 of an Abort whose command goes on.
pub(super) const NOT_ABORTED: u64 = 1;

/// How a command is answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With this in dwords 0 and 1.
    Value(u64),
    /// With data, and then well.
    Data(Vec<u8>),
    /// It failed.
    Failed(Status),
    /// Not yet: it waits for an event.
    Held,
}

impl From<Result<u64, Status>> for Answer {
    fn from(result: Result<u64, Status>) -> Self {
        result.map_or_else(Self::Failed, Self::Value)
    }
}

impl From<Result<Vec<u8>, Status>> for Answer {
    fn from(result: Result<Vec<u8>, Status>) -> Self {
        result.map_or_else(Self::Failed, Self::Data)
    }
}

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();
const NO_OPCODE: Status = Status::INVALID_OPCODE.do_not_retry();

/// Answers a Fabrics command of a connected admin queue.
pub(super) fn fabrics(shared: &mut Shared, cntlid: u16, command: &Command) -> Answer {
    let mqes = shared.config.queue_entries_max - 1;
    let opening = shared.is_opening();
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return Answer::Failed(Status::INTERNAL);
    };
    match Fabrics::of(command) {
        Some(Fabrics::PropertyGet(get)) => controller.property(get, mqes, opening).into(),
        Some(Fabrics::PropertySet(set)) => controller.set_property(set).map(|()| 0).into(),
        // It is connected.
        Some(Fabrics::Connect(_)) => Answer::Failed(Status::COMMAND_SEQUENCE.do_not_retry()),
        // It is for I/O queues (fabrics, section 3.4).
        Some(Fabrics::Disconnect(_)) => Answer::Failed(Status::INVALID_QUEUE_TYPE.do_not_retry()),
        // There is no authentication.
        _ => Answer::Failed(NO_OPCODE),
    }
}

/// Answers an admin command.
pub(super) fn admin(shared: &mut Shared, cntlid: u16, command: &Command) -> Answer {
    let Some(controller) = shared.controllers.get_mut(cntlid) else {
        return Answer::Failed(Status::INTERNAL);
    };
    if !controller.is_ready() {
        return Answer::Failed(Status::COMMAND_SEQUENCE.do_not_retry());
    }
    let io = controller.subsystem.is_some();
    match command.opcode {
        admin::IDENTIFY => {
            let Some(controller) = shared.controllers.get(cntlid) else {
                return Answer::Failed(Status::INTERNAL);
            };
            pages::identify(shared, controller, command).into()
        }
        admin::GET_LOG_PAGE => pages::log(shared, cntlid, &GetLogPage::of(command)).into(),
        admin::KEEP_ALIVE => Answer::Value(0),
        admin::ASYNC_EVENT if controller.events.request(command.cid) => Answer::Held,
        admin::ASYNC_EVENT => Answer::Failed(Status::ASYNC_EVENT_LIMIT.do_not_retry()),
        admin::SET_FEATURES => {
            let queues_max = shared.config.queues_max;
            features::set(controller, Features::of(command), queues_max).map(u64::from).into()
        }
        admin::GET_FEATURES => get_features(shared, cntlid, command),
        admin::ABORT if io => abort(shared, cntlid, command),
        _ => Answer::Failed(NO_OPCODE),
    }
}

/// Abort (base, section 5.1): what its command waits for is looked at when this turn is over, since
/// it may be another connection's.
fn abort(shared: &mut Shared, cntlid: u16, command: &Command) -> Answer {
    let controller = shared.controllers.get(cntlid);
    let Some((controller, admin)) = controller.and_then(|one| Some((one, one.queue(0)?))) else {
        return Answer::Failed(Status::INTERNAL);
    };
    shared.counters.nvmet_aborts += 1;
    let open = shared.aborts.iter().filter(|abort| abort.admin == admin).count();
    if open > usize::from(ACL) {
        return Answer::Failed(Status::ABORT_LIMIT.do_not_retry());
    }
    let asked = Abort::of(command);
    let Some(queue) = controller.queue(asked.sqid) else { return Answer::Value(NOT_ABORTED) };
    shared.aborts.push_back(Aborting { admin, cid: command.cid, queue, target: asked.cid });
    Answer::Held
}

/// Get Features: a value, or the host's identifier.
fn get_features(shared: &Shared, cntlid: u16, command: &Command) -> Answer {
    let Some(controller) = shared.controllers.get(cntlid) else {
        return Answer::Failed(Status::INTERNAL);
    };
    let asked = Features::of(command);
    if asked.fid == feature::HOST_IDENTIFIER && controller.subsystem.is_some() {
        // EXHID: fabrics have identifiers of 16 bytes only.
        return if asked.value & 1 == 1 {
            Answer::Data(controller.hostid.to_vec())
        } else {
            Answer::Failed(INVALID)
        };
    }
    features::get(controller, asked, shared.config.queues_max).map(u64::from).into()
}
