//! Data of Identify and Get Log Page. Called by `admin`; every page is built on request.

use std::sync::atomic::AtomicU64;

use wire::nvme::command::{GetLogPage, IdentifyCommand, NSID_ALL, NvmeCommand, admin, events, io};
use wire::nvme::fabrics::ADMIN_IN_CAPSULE_BYTES;
use wire::nvme::identify::{
    self, AsciiField, BYTES, CSI_NVM, ControllerType, IdentifyController as Identified,
    IdentifyControllerNvm, IdentifyNamespace as IdentifiedNamespace, IndependentNamespace,
    NamespaceDescriptor, cns, ctratt, lpa, oncs, sgls, vwc,
};
use wire::nvme::log::{
    CHANGED_NAMESPACES_BYTES, CHANGED_TOO_MANY, ErrorLogEntry, FirmwareLog, HealthLog,
    SUPPORTED_BYTES, effect, lid, write_effects, write_supported,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::admin::ACL;
use super::association::ERRORS_MAX;
use super::controller::{CHANGED_MAX, Controller, EVENT_REQUESTS_MAX, VERSION};
use super::discovery;
use super::group::HealthTotals;
use super::shared::NvmeTargetState;
use super::subsystem::Subsystem;

const INVALID: NvmeStatus = NvmeStatus::INVALID_FIELD.do_not_retry();
const NO_NAMESPACE: NvmeStatus = NvmeStatus::INVALID_NAMESPACE.do_not_retry();
/// Composite temperature in kelvin: 40 degrees Celsius, below every threshold. Files have no
/// temperature, and monitors show zero as -273 degrees.
const TEMPERATURE_K: u16 = 313;
const MODEL: &str = "Outboard";
const REVISION: &str = env!("CARGO_PKG_VERSION");

/// Supported optional commands of the NVM command set.
const ONCS: u16 = oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::SAVE_SELECT;
const LOGS: [u8; 6] = [
    lid::SUPPORTED,
    lid::ERRORS,
    lid::HEALTH,
    lid::FIRMWARE,
    lid::CHANGED_NAMESPACES,
    lid::EFFECTS,
];
const DISCOVERY_LOGS: [u8; 3] = [lid::SUPPORTED, lid::ERRORS, lid::DISCOVERY];

/// Builds the data structure that an Identify command requests.
///
/// # Errors
/// The structure is not supported, or the namespace does not exist.
pub(super) fn identify(
    shared: &NvmeTargetState,
    controller: &Controller,
    command: &NvmeCommand,
) -> Result<Vec<u8>, NvmeStatus> {
    let asked = IdentifyCommand::from_command(command);
    let mut page = [0; BYTES];
    let subsystem = controller.association.subsystem.and_then(|index| shared.subsystems.get(index));
    let nvm = |asked: &IdentifyCommand| if asked.csi == CSI_NVM { Ok(()) } else { Err(INVALID) };
    match (asked.cns, subsystem) {
        (cns::CONTROLLER, _) => identify_controller(shared, controller).write(&mut page),
        (_, None) => return Err(INVALID),
        (cns::NAMESPACE, Some(subsystem)) => {
            if let Some(found) = namespace(shared, subsystem, command.nsid, true)? {
                found.write(&mut page);
            }
        }
        (cns::ACTIVE_NAMESPACES | cns::ACTIVE_NAMESPACES_IO, Some(subsystem)) => {
            if asked.cns == cns::ACTIVE_NAMESPACES_IO {
                nvm(&asked)?;
            }
            // The two largest IDs are reserved (base section 5.17.2.2).
            if command.nsid >= NSID_ALL - 1 {
                return Err(NO_NAMESPACE);
            }
            let active = subsystem.active(&shared.namespaces);
            identify::write_namespaces(command.nsid, active, &mut page);
        }
        (cns::NAMESPACE_DESCRIPTORS, Some(subsystem)) => {
            let place = subsystem.namespace_index(command.nsid).ok_or(NO_NAMESPACE)?;
            let namespace = shared.namespaces.get(place).ok_or(NO_NAMESPACE)?;
            namespace.blocks().ok_or(NO_NAMESPACE)?;
            let uuid = namespace.uuid;
            let all = [
                NamespaceDescriptor::Uuid(uuid),
                NamespaceDescriptor::Nguid(uuid),
                NamespaceDescriptor::Csi(CSI_NVM),
            ];
            NamespaceDescriptor::write_all(&all, &mut page);
        }
        (cns::NAMESPACE_IO, Some(subsystem)) => {
            nvm(&asked)?;
            // All fields are about protection information, which is not supported: zeros.
            namespace(shared, subsystem, command.nsid, true)?;
        }
        (cns::CONTROLLER_IO, Some(_)) => {
            nvm(&asked)?;
            IdentifyControllerNvm::default().write(&mut page);
        }
        (cns::NAMESPACE_INDEPENDENT, Some(subsystem)) => {
            let found = namespace(shared, subsystem, command.nsid, false)?;
            let (nmic, ready) = (u8::from(found.is_some()), found.is_some());
            let nsattr = found.map_or(0, |found| found.nsattr);
            IndependentNamespace { nmic, nsattr, ready, ..IndependentNamespace::default() }
                .write(&mut page);
        }
        (cns::CONTROLLERS, Some(_)) => {
            let all = shared.member.associations();
            let same = all.iter().filter(|one| one.subsystem == controller.association.subsystem);
            identify::write_controllers(asked.cntid, same.map(|one| one.cntlid), &mut page);
        }
        (cns::COMMAND_SETS, Some(_)) => identify::write_command_sets(&mut page),
        _ => return Err(INVALID),
    }
    Ok(page.to_vec())
}

/// Returns a namespace of a subsystem; `None` if it is inactive. If `all`, [`NSID_ALL`] returns the
/// common attributes of all namespaces.
fn namespace(
    shared: &NvmeTargetState,
    subsystem: &Subsystem,
    nsid: u32,
    all: bool,
) -> Result<Option<IdentifiedNamespace>, NvmeStatus> {
    if all && nsid == NSID_ALL {
        let mut common = IdentifiedNamespace::new(0, 12);
        common.dlfeat = 1 | 1 << 3;
        return Ok(Some(common));
    }
    if !subsystem.is_valid(nsid) {
        return Err(NO_NAMESPACE);
    }
    let place = subsystem.namespace_index(nsid).and_then(|place| shared.namespaces.get(place));
    Ok(place.and_then(|namespace| namespace.identify()))
}

/// Builds Identify Controller. The requirements of Linux's initiator are in its `fabrics.c` and
/// `core.c`.
fn identify_controller(shared: &NvmeTargetState, controller: &Controller) -> Identified {
    let config = &shared.config;
    let subsystem = controller.association.subsystem.and_then(|index| shared.subsystems.get(index));
    let nn = subsystem.map_or(0, Subsystem::nn);
    let io = subsystem.is_some();
    let in_capsule = config.in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES);
    Identified {
        vid: 0,
        ssvid: 0,
        sn: subsystem.map_or_else(|| AsciiField::new(""), |subsystem| subsystem.serial),
        mn: AsciiField::new(MODEL),
        fr: AsciiField::new(REVISION),
        rab: 0,
        cmic: if io { 1 << 1 } else { 0 },
        mdts: config.mdts,
        cntlid: controller.association.cntlid,
        ver: VERSION,
        oaes: if io { events::NAMESPACES } else { events::DISCOVERY },
        ctratt: ctratt::HOST_ID_128 | ctratt::TRAFFIC_KEEP_ALIVE,
        kind: if io { ControllerType::Io } else { ControllerType::Discovery },
        oacs: 0,
        acl: ACL,
        aerl: EVENT_REQUESTS_MAX - 1,
        // One firmware slot, which is read only.
        frmw: 1 << 1 | 1,
        lpa: lpa::EFFECTS | lpa::EXTENDED,
        elpe: ERRORS_MAX - 1,
        npss: 0,
        // WCTEMP and CCTEMP are mandatory: 70 and 100 degrees Celsius.
        temperatures: [343, 373],
        kas: 1,
        sqes: if io { 0x66 } else { 0 },
        cqes: if io { 0x44 } else { 0 },
        maxcmd: config.queue_entries_max,
        nn,
        oncs: if io { ONCS } else { 0 },
        fuses: 0,
        vwc: if io { vwc::PRESENT | vwc::FLUSH_ONE } else { 0 },
        atomic: [0; 2],
        sgls: sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT,
        mnan: nn,
        subnqn: Some(subsystem.map_or_else(Nqn::discovery, |subsystem| subsystem.nqn)),
        ioccsz: if io { (64 + in_capsule) / 16 } else { 0 },
        iorcsz: if io { 1 } else { 0 },
        icdoff: 0,
        fcatt: 0,
        msdbd: 1,
        // Disconnect is supported.
        ofcs: u16::from(io),
    }
}

/// Returns the requested range of a log page.
///
/// # Errors
/// The page is unknown, the range begins after the page's end, or it extends beyond the end and is
/// longer than 4 KiB.
pub(super) fn log(
    shared: &mut NvmeTargetState,
    cntlid: u16,
    asked: &GetLogPage,
) -> Result<Vec<u8>, NvmeStatus> {
    if asked.len > shared.data_max() || asked.by_index || asked.offset % 4 != 0 {
        return Err(INVALID);
    }
    let controller = shared.controllers.get(cntlid).ok_or(NvmeStatus::INTERNAL)?;
    let io = controller.association.subsystem.is_some();
    let known: &[u8] = if io { &LOGS } else { &DISCOVERY_LOGS };
    if !known.contains(&asked.lid) {
        return Err(NvmeStatus::INVALID_LOG_PAGE.do_not_retry());
    }
    let page = match asked.lid {
        lid::SUPPORTED => {
            let mut page = [0; SUPPORTED_BYTES];
            write_supported(known, &mut page);
            page.to_vec()
        }
        lid::ERRORS => errors(controller),
        lid::HEALTH => health(shared, controller).to_bytes().to_vec(),
        lid::FIRMWARE => {
            FirmwareLog { active: 1, revision: AsciiField::new(REVISION) }.to_bytes().to_vec()
        }
        lid::EFFECTS => effects(),
        lid::CHANGED_NAMESPACES => changed(controller),
        _ => discovery::page(shared, &controller.association.hostnqn),
    };
    let offset = usize::try_from(asked.offset).map_err(|_| INVALID)?;
    let rest = page.get(offset..).ok_or(INVALID)?;
    let len = usize::try_from(asked.len).map_err(|_| INVALID)?;
    // Bytes after the page's end read as zeros, but at most 4 KiB are returned in that case.
    if len > rest.len().max(BYTES) {
        return Err(INVALID);
    }
    let mut range = vec![0; len];
    range.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let controller = shared.controllers.get_mut(cntlid).filter(|_| !asked.retain_event);
    match (asked.lid, controller) {
        (lid::CHANGED_NAMESPACES, Some(controller)) => controller.events.namespace_log_read(),
        (lid::DISCOVERY, Some(controller)) => controller.events.discovery_log_read(),
        _ => {}
    }
    Ok(range)
}

fn errors(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; usize::from(ERRORS_MAX) * ErrorLogEntry::BYTES];
    controller.association.with_errors(|log| {
        for (to, entry) in page.chunks_exact_mut(ErrorLogEntry::BYTES).zip(&log.entries) {
            to.copy_from_slice(&entry.to_bytes());
        }
    });
    page
}

fn health(shared: &NvmeTargetState, controller: &Controller) -> HealthLog {
    // Units of 1000 times 512 bytes, rounded up.
    let units = |bytes: u64| u128::from(bytes.div_ceil(512_000));
    let sum = |total: fn(&HealthTotals) -> &AtomicU64| shared.member.health_sum(total);
    HealthLog {
        temperature: TEMPERATURE_K,
        percent: [100, 0, 0],
        data_units: [sum(|one| &one.read_bytes), sum(|one| &one.written_bytes)].map(units),
        commands: [sum(|one| &one.reads), sum(|one| &one.writes)].map(u128::from),
        media_errors: u128::from(sum(|one| &one.media_errors)),
        error_entries: u128::from(controller.association.with_errors(|log| log.count)),
        ..HealthLog::default()
    }
}

fn effects() -> Vec<u8> {
    let (does, writes) = (effect::SUPPORTED, effect::SUPPORTED | effect::CHANGES_DATA);
    let admin = [
        (admin::GET_LOG_PAGE, does),
        (admin::IDENTIFY, does),
        (admin::ABORT, does),
        (admin::SET_FEATURES, does),
        (admin::GET_FEATURES, does),
        (admin::ASYNC_EVENT, does),
        (admin::KEEP_ALIVE, does),
    ];
    let io = [
        (io::FLUSH, does),
        (io::WRITE, writes),
        (io::READ, does),
        (io::COMPARE, does),
        (io::WRITE_ZEROES, writes),
        (io::DATASET_MANAGEMENT, writes),
    ];
    let mut page = [0; effect::BYTES];
    write_effects(&admin, &io, &mut page);
    page.to_vec()
}

fn changed(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; CHANGED_NAMESPACES_BYTES];
    let changed = &controller.events.changed;
    let too_many = [CHANGED_TOO_MANY];
    let list = if changed.len() > CHANGED_MAX { &too_many[..] } else { changed };
    for (to, nsid) in page.chunks_exact_mut(4).zip(list) {
        to.copy_from_slice(&nsid.to_le_bytes());
    }
    page
}
