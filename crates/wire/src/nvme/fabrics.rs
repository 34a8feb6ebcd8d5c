//! Fabrics commands and controller properties, by which an initiator connects to a controller and
//! configures it (fabrics section 3; base sections 3.1.3 and 6).

use super::command::{FABRICS, NvmeCommand, Sgl};
use super::nqn::{NQN_FIELD_BYTES, Nqn};
use super::status::NvmeStatus;
use super::{get, put, u16_at, u32_at, u64_at};

/// FCTYPE: types of Fabrics commands.
pub mod fctype {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Length of the data of a Connect command.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Controller ID in a Connect command by which the subsystem chooses one (dynamic controller
/// model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// Controller ID in a Connect command for any controller of the static controller model.
pub const CNTLID_STATIC: u16 = 0xfffe;
/// Maximum controller ID.
pub const CNTLID_MAX: u16 = 0xffef;
/// Maximum in-capsule data of Fabrics commands and of commands on the admin queue, whatever the
/// value of IOCCSZ (tcp section 3.3.2).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// A Fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Property Set.
    PropertySet(PropertySet),
    /// Connect; its data is a [`ConnectData`].
    Connect(ConnectCommand),
    /// Property Get.
    PropertyGet(PropertyGet),
    /// Disconnect, with its record format.
    Disconnect(u16),
    /// Another command, with its type.
    Other(u8),
}

impl FabricsCommand {
    /// Decodes a command with opcode [`FABRICS`]; `None` for other opcodes.
    #[must_use]
    pub fn from_command(command: &NvmeCommand) -> Option<Self> {
        if command.opcode != FABRICS {
            return None;
        }
        let [kind, ..] = command.nsid.to_le_bytes();
        let bytes = command.to_bytes();
        let attribute = bytes[40] & 7;
        let offset = u32_at(&bytes, 44);
        Some(match kind {
            fctype::PROPERTY_SET => {
                let value = u64_at(&bytes, 48);
                Self::PropertySet(PropertySet { attribute, offset, value })
            }
            fctype::PROPERTY_GET => Self::PropertyGet(PropertyGet { attribute, offset }),
            fctype::CONNECT => Self::Connect(ConnectCommand {
                recfmt: u16_at(&bytes, 40),
                qid: u16_at(&bytes, 42),
                sqsize: u16_at(&bytes, 44),
                cattr: bytes[46],
                kato: u32_at(&bytes, 48),
            }),
            fctype::DISCONNECT => Self::Disconnect(u16_at(&bytes, 40)),
            other => Self::Other(other),
        })
    }

    /// Encodes the command with this data descriptor.
    #[must_use]
    pub fn to_command(&self, cid: u16, sgl: Sgl) -> NvmeCommand {
        let mut bytes = [0; 64];
        let kind = match *self {
            Self::PropertySet(set) => {
                put(&mut bytes, 40, &[set.attribute]);
                put(&mut bytes, 44, &set.offset.to_le_bytes());
                put(&mut bytes, 48, &set.value.to_le_bytes());
                fctype::PROPERTY_SET
            }
            Self::PropertyGet(get) => {
                put(&mut bytes, 40, &[get.attribute]);
                put(&mut bytes, 44, &get.offset.to_le_bytes());
                fctype::PROPERTY_GET
            }
            Self::Connect(connect) => {
                put(&mut bytes, 40, &connect.recfmt.to_le_bytes());
                put(&mut bytes, 42, &connect.qid.to_le_bytes());
                put(&mut bytes, 44, &connect.sqsize.to_le_bytes());
                put(&mut bytes, 46, &[connect.cattr]);
                put(&mut bytes, 48, &connect.kato.to_le_bytes());
                fctype::CONNECT
            }
            Self::Disconnect(recfmt) => {
                put(&mut bytes, 40, &recfmt.to_le_bytes());
                fctype::DISCONNECT
            }
            Self::Other(kind) => kind,
        };
        let body = NvmeCommand::parse(&bytes);
        let command = NvmeCommand::new(FABRICS, cid, u32::from(kind));
        NvmeCommand { cdw10: body.cdw10, ..command }.with_data(sgl)
    }
}

/// Property Get (fabrics section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// ATTRIB: 0 for four bytes, 1 for eight; others are reserved.
    pub attribute: u8,
    /// Offset of the property, see [`property`].
    pub offset: u32,
}

/// Property Set (fabrics section 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// ATTRIB: 0 for four bytes, 1 for eight; others are reserved.
    pub attribute: u8,
    /// Offset of the property, see [`property`].
    pub offset: u32,
    /// Value to set.
    pub value: u64,
}

impl PropertyGet {
    /// Creates a request for a property.
    #[must_use]
    pub const fn new(offset: u32) -> Self {
        Self { attribute: (offset == property::CAP) as u8, offset }
    }
}

impl PropertySet {
    /// Creates a request to set a property of four bytes.
    #[must_use]
    pub const fn new(offset: u32, value: u32) -> Self {
        Self { attribute: 0, offset, value: value as u64 }
    }
}

/// Connect (fabrics section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectCommand {
    /// RECFMT: record format, zero.
    pub recfmt: u16,
    /// Queue ID; zero is the admin queue.
    pub qid: u16,
    /// SQSIZE: entries of the queue, less one; not zero.
    pub sqsize: u16,
    /// CATTR: connect attributes, see [`cattr`].
    pub cattr: u8,
    /// KATO: keep alive timeout in milliseconds, for the admin queue; zero disables it.
    pub kato: u32,
}

/// Bits of [`ConnectCommand::cattr`].
pub mod cattr {
    /// Mask of the priority class.
    pub const PRIORITY: u8 = 0x03;
    /// Submission queue flow control is disabled: completions have no SQHD.
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 0x04;
    /// I/O queues may be deleted individually.
    pub const DELETE_QUEUES: u8 = 0x08;
}

/// Offsets in a Connect command and in its data, by which an invalid parameter is reported.
pub mod ipo {
    /// RECFMT of the command.
    pub const RECFMT: u16 = 40;
    /// QID of the command.
    pub const QID: u16 = 42;
    /// SQSIZE of the command.
    pub const SQSIZE: u16 = 44;
    /// KATO of the command.
    pub const KATO: u16 = 48;
    /// HOSTID of the data.
    pub const HOSTID: u16 = 0;
    /// CNTLID of the data.
    pub const CNTLID: u16 = 16;
    /// SUBNQN of the data.
    pub const SUBNQN: u16 = 256;
    /// HOSTNQN of the data.
    pub const HOSTNQN: u16 = 512;
}

/// Result of a Connect command (fabrics figures 20 and 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectResult {
    /// The controller accepted the connection.
    Accepted {
        /// Controller ID.
        cntlid: u16,
        /// AUTHREQ: required authentication; zero for none.
        authentication: u16,
    },
    /// A parameter of the command is invalid, at this offset.
    InvalidCommand(u16),
    /// A parameter of the data is invalid, at this offset.
    InvalidData(u16),
    /// Refused for another reason.
    Refused(NvmeStatus),
}

impl ConnectResult {
    /// Decodes dword 0 and status of a completion.
    #[must_use]
    pub const fn from_completion(dword0: u32, status: NvmeStatus) -> Self {
        let (low, high) = ((dword0 & 0xffff) as u16, (dword0 >> 16) as u16);
        if status.is_success() {
            return Self::Accepted { cntlid: low, authentication: high };
        }
        let invalid = status.sct() == NvmeStatus::CONNECT_INVALID.sct()
            && status.sc() == NvmeStatus::CONNECT_INVALID.sc();
        match (invalid, high & 1) {
            (false, _) => Self::Refused(status),
            (true, 0) => Self::InvalidCommand(low),
            (true, _) => Self::InvalidData(low),
        }
    }

    /// Encodes dword 0 and status of a completion. Invalid parameters are marked Do Not Retry.
    #[must_use]
    pub fn to_completion(self) -> (u32, NvmeStatus) {
        let invalid = NvmeStatus::CONNECT_INVALID.do_not_retry();
        match self {
            Self::Accepted { cntlid, authentication } => {
                (u32::from(cntlid) | u32::from(authentication) << 16, NvmeStatus::SUCCESS)
            }
            Self::InvalidCommand(offset) => (u32::from(offset), invalid),
            Self::InvalidData(offset) => (u32::from(offset) | 1 << 16, invalid),
            Self::Refused(status) => (0, status),
        }
    }
}

/// Data of a Connect command (fabrics figure 19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// HOSTID: UUID chosen by the initiator.
    pub hostid: [u8; 16],
    /// CNTLID: controller ID, or [`CNTLID_DYNAMIC`].
    pub cntlid: u16,
    /// SUBNQN: NQN of the subsystem; `None` if it is not valid.
    pub subnqn: Option<Nqn>,
    /// HOSTNQN: NQN of the initiator; `None` if it is not valid.
    pub hostnqn: Option<Nqn>,
}

impl ConnectData {
    /// Parses the data.
    #[must_use]
    pub fn parse(data: &[u8; CONNECT_DATA_BYTES]) -> Self {
        let name = |at| Nqn::from_field(&get::<NQN_FIELD_BYTES>(data, at));
        Self {
            hostid: get(data, 0),
            cntlid: u16_at(data, 16),
            subnqn: name(256),
            hostnqn: name(512),
        }
    }

    /// Encodes the data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut data = [0; CONNECT_DATA_BYTES];
        put(&mut data, 0, &self.hostid);
        put(&mut data, 16, &self.cntlid.to_le_bytes());
        for (at, name) in [(256, &self.subnqn), (512, &self.hostnqn)] {
            put(&mut data, at, name.as_ref().map_or("", Nqn::as_str).as_bytes());
        }
        data
    }
}

/// Offsets of the properties of a fabrics controller (base section 3.1.3).
pub mod property {
    /// Controller Capabilities, eight bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset; optional.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts.
    pub const CRTO: u32 = 0x68;
}

/// Values of [`property::VS`] and of VER in Identify Controller.
pub mod version {
    /// NVMe 1.4.
    pub const V1_4: u32 = 0x0001_0400;
    /// NVMe 2.0.
    pub const V2_0: u32 = 0x0002_0000;
}

/// Controller Capabilities (CAP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCapabilities {
    /// MQES: maximum entries of an I/O queue, less one.
    pub mqes: u16,
    /// CQR: queues must be contiguous, as required over fabrics.
    pub contiguous: bool,
    /// TO: maximum time until the controller is ready, in units of 500 ms.
    pub timeout: u8,
    /// CSS: I/O command sets. Bit 0: the NVM command set; bit 6: several may be supported; bit 7:
    /// none.
    pub css: u8,
    /// MPSMIN: minimum page size, as a base-2 logarithm less 12.
    pub mpsmin: u8,
    /// MPSMAX: maximum page size, as a base-2 logarithm less 12.
    pub mpsmax: u8,
    /// CRMS: controller ready modes.
    pub ready_modes: u8,
}

impl ControllerCapabilities {
    /// Decodes the property.
    #[must_use]
    pub const fn from_value(value: u64) -> Self {
        Self {
            mqes: (value & 0xffff) as u16,
            contiguous: value & 1 << 16 != 0,
            timeout: (value >> 24 & 0xff) as u8,
            css: (value >> 37 & 0xff) as u8,
            mpsmin: (value >> 48 & 0xf) as u8,
            mpsmax: (value >> 52 & 0xf) as u8,
            ready_modes: (value >> 59 & 3) as u8,
        }
    }

    /// Encodes the property.
    #[must_use]
    pub const fn to_value(self) -> u64 {
        self.mqes as u64
            | (self.contiguous as u64) << 16
            | (self.timeout as u64) << 24
            | (self.css as u64) << 37
            | (self.mpsmin as u64 & 0xf) << 48
            | (self.mpsmax as u64 & 0xf) << 52
            | (self.ready_modes as u64 & 3) << 59
    }
}

/// Controller Configuration (CC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ControllerConfiguration {
    /// EN: enable the controller.
    pub enable: bool,
    /// CSS: 0 for the NVM command set, 6 for all supported ones, 7 for none.
    pub css: u8,
    /// MPS: page size, as a base-2 logarithm less 12.
    pub mps: u8,
    /// AMS: arbitration mechanism; 0 is round robin.
    pub ams: u8,
    /// SHN: shutdown notification.
    pub shutdown: ShutdownNotification,
    /// IOSQES: base-2 logarithm of the I/O submission queue entry size: 6.
    pub iosqes: u8,
    /// IOCQES: base-2 logarithm of the I/O completion queue entry size: 4.
    pub iocqes: u8,
}

/// SHN: shutdown notification in [`ControllerConfiguration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum ShutdownNotification {
    /// No notification.
    #[default]
    None,
    /// Normal shutdown.
    Normal,
    /// Abrupt shutdown.
    Abrupt,
    /// Reserved value.
    Reserved,
}

impl ControllerConfiguration {
    /// Configuration by which initiators enable a controller: NVM command set, entries of 64 and 16
    /// bytes.
    pub const ENABLED: Self = Self {
        enable: true,
        css: 0,
        mps: 0,
        ams: 0,
        shutdown: ShutdownNotification::None,
        iosqes: 6,
        iocqes: 4,
    };

    /// Decodes the property.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self {
            enable: value & 1 != 0,
            css: (value >> 4 & 7) as u8,
            mps: (value >> 7 & 0xf) as u8,
            ams: (value >> 11 & 7) as u8,
            shutdown: match value >> 14 & 3 {
                0 => ShutdownNotification::None,
                1 => ShutdownNotification::Normal,
                2 => ShutdownNotification::Abrupt,
                _ => ShutdownNotification::Reserved,
            },
            iosqes: (value >> 16 & 0xf) as u8,
            iocqes: (value >> 20 & 0xf) as u8,
        }
    }

    /// Encodes the property.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        let shutdown = match self.shutdown {
            ShutdownNotification::None => 0,
            ShutdownNotification::Normal => 1,
            ShutdownNotification::Abrupt => 2,
            ShutdownNotification::Reserved => 3,
        };
        self.enable as u32
            | (self.css as u32 & 7) << 4
            | (self.mps as u32 & 0xf) << 7
            | (self.ams as u32 & 7) << 11
            | shutdown << 14
            | (self.iosqes as u32 & 0xf) << 16
            | (self.iocqes as u32 & 0xf) << 20
    }
}

/// Controller Status (CSTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ControllerStatus {
    /// RDY: the controller is ready.
    pub ready: bool,
    /// CFS: fatal error; the controller must be reset.
    pub fatal: bool,
    /// SHST: shutdown status.
    pub shutdown: ShutdownStatus,
}

/// SHST: shutdown status in [`ControllerStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum ShutdownStatus {
    /// Normal operation.
    #[default]
    Normal,
    /// Shutdown in progress.
    Occurring,
    /// Shutdown complete.
    Complete,
}

impl ControllerStatus {
    /// Decodes the property.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self {
            ready: value & 1 != 0,
            fatal: value & 2 != 0,
            shutdown: match value >> 2 & 3 {
                1 => ShutdownStatus::Occurring,
                2 => ShutdownStatus::Complete,
                _ => ShutdownStatus::Normal,
            },
        }
    }

    /// Encodes the property.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        let shutdown = match self.shutdown {
            ShutdownStatus::Normal => 0,
            ShutdownStatus::Occurring => 1,
            ShutdownStatus::Complete => 2,
        };
        self.ready as u32 | (self.fatal as u32) << 1 | shutdown << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn connect_as_linux_writes_it() {
        // Linux's `nvmf_connect_admin_queue`: 32 entries, no flow control, 5 s keep alive,
        // in-capsule data.
        let mut entry = [0; 64];
        entry[..5].copy_from_slice(&[0x7f, 0x40, 0x03, 0x00, 0x01]);
        entry[32..40].copy_from_slice(&[0, 4, 0, 0, 0, 0, 0, 0x01]);
        entry[40..52].copy_from_slice(&[0, 0, 0, 0, 0x1f, 0, 4, 0, 0x88, 0x13, 0, 0]);
        let connect = ConnectCommand {
            recfmt: 0,
            qid: 0,
            sqsize: 31,
            cattr: cattr::DISABLE_SQ_FLOW_CONTROL,
            kato: 5000,
        };
        let command = NvmeCommand::parse(&entry);
        assert_eq!(FabricsCommand::from_command(&command), Some(FabricsCommand::Connect(connect)));
        assert_eq!(command.sgl, Sgl::InCapsule { offset: 0, len: 1024 });
        assert_eq!(FabricsCommand::Connect(connect).to_command(3, command.sgl), command);
        assert_eq!(FabricsCommand::from_command(&NvmeCommand::new(0x02, 0, 0)), None);

        // Linux's `nvmf_reg_read64` of CAP, `nvmf_reg_write32` of CC.
        let get = PropertyGet::new(property::CAP);
        assert_eq!(get, PropertyGet { attribute: 1, offset: 0 });
        let set = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
        assert_eq!((set.attribute, set.offset, set.value), (0, 0x14, 0x0046_0001));
    }

    #[test]
    fn results_of_connect() {
        let invalid = NvmeStatus::CONNECT_INVALID.do_not_retry();
        for (result, dword0, status) in [
            (ConnectResult::Accepted { cntlid: 7, authentication: 0 }, 7, NvmeStatus::SUCCESS),
            (ConnectResult::InvalidCommand(ipo::SQSIZE), 44, invalid),
            (ConnectResult::InvalidData(ipo::SUBNQN), 0x1_0100, invalid),
            (ConnectResult::Refused(NvmeStatus::INVALID_HOST), 0, NvmeStatus::INVALID_HOST),
        ] {
            assert_eq!(result.to_completion(), (dword0, status));
            assert_eq!(ConnectResult::from_completion(dword0, status), result);
        }
    }

    #[test]
    fn data_of_connect() {
        let data = ConnectData {
            hostid: [9; 16],
            cntlid: CNTLID_DYNAMIC,
            subnqn: Nqn::new("nqn.2026-11.example:disks"),
            hostnqn: None,
        };
        let bytes = data.to_bytes();
        assert_eq!(bytes[16..18], [0xff, 0xff]);
        assert_eq!(&bytes[256..281], b"nqn.2026-11.example:disks");
        assert_eq!(ConnectData::parse(&bytes), data);
    }

    #[test]
    fn properties() {
        // Linux's `nvmet_init_cap` with 128 entries, 7.5 s.
        let capabilities = ControllerCapabilities {
            mqes: 127,
            contiguous: true,
            timeout: 15,
            css: 1,
            mpsmin: 0,
            mpsmax: 0,
            ready_modes: 0,
        };
        assert_eq!(capabilities.to_value(), 0x20_0f01_007f);
        let off = ControllerConfiguration::from_value(0x0046_4000);
        assert_eq!(
            off,
            ControllerConfiguration {
                enable: false,
                shutdown: ShutdownNotification::Normal,
                ..ControllerConfiguration::ENABLED
            }
        );
        let down =
            ControllerStatus { ready: true, fatal: false, shutdown: ShutdownStatus::Complete };
        assert_eq!(down.to_value(), 9);
    }

    proptest! {
        #[test]
        fn values_are_read_as_written(
            bytes in proptest::collection::vec(any::<u8>(), 64),
            kind in 0..10_u8,
            value in any::<u64>(),
        ) {
            let mut entry: [u8; 64] = get(&bytes, 0);
            entry[0] = FABRICS;
            entry[4] = kind;
            let command = NvmeCommand::parse(&entry);
            let fabrics = FabricsCommand::from_command(&command).unwrap();
            prop_assert_eq!(
                FabricsCommand::from_command(&fabrics.to_command(1, Sgl::NONE)), Some(fabrics));
            let capabilities = ControllerCapabilities::from_value(value);
            prop_assert_eq!(
                ControllerCapabilities::from_value(capabilities.to_value()), capabilities);
            let configuration = ControllerConfiguration::from_value(command.cdw10[0]);
            let again = ControllerConfiguration::from_value(configuration.to_value());
            prop_assert_eq!(again, configuration);
            let status = ControllerStatus::from_value(command.cdw10[0]);
            prop_assert_eq!(ControllerStatus::from_value(status.to_value()), status);
        }
    }
}
