//! Identify Controller (base section 5.17.2.1).

use super::{AsciiField, BYTES};
use crate::nvme::nqn::{NQN_FIELD_BYTES, Nqn};
use crate::nvme::{get, put, u8_at, u16_at, u32_at};

/// CNTRLTYPE: controller type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControllerType {
    /// Not reported, as before NVMe 1.4.
    Unknown,
    /// I/O controller.
    Io,
    /// Discovery controller.
    Discovery,
    /// Administrative controller.
    Admin,
    /// Reserved value.
    Other(u8),
}

impl ControllerType {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Unknown,
            1 => Self::Io,
            2 => Self::Discovery,
            3 => Self::Admin,
            other => Self::Other(other),
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Io => 1,
            Self::Discovery => 2,
            Self::Admin => 3,
            Self::Other(other) => other,
        }
    }
}

/// ONCS: optional commands and features of the NVM command set.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save field of Set Features and Select field of Get Features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// CTRATT: controller attributes.
pub mod ctratt {
    /// 128-bit host identifiers.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Traffic based keep alive: any command restarts the timer.
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
}

/// SGLS: SGL support.
pub mod sgls {
    /// SGLs are supported, without alignment requirements.
    pub const SUPPORTED: u32 = 1 << 0;
    /// An address may be an offset, for in-capsule data.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport data blocks are supported.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// VWC: volatile write cache.
pub mod vwc {
    /// There is a volatile write cache.
    pub const PRESENT: u8 = 1 << 0;
    /// Flush supports the namespace ID of all namespaces: bits 2:1 are 3.
    pub const FLUSH_ALL: u8 = 3 << 1;
    /// Flush does not support that namespace ID: bits 2:1 are 2.
    pub const FLUSH_ONE: u8 = 2 << 1;
}

/// LPA: log page attributes.
pub mod lpa {
    /// The Commands Supported and Effects page is supported.
    pub const EFFECTS: u8 = 1 << 1;
    /// Extended data of Get Log Page: offsets and 32-bit lengths.
    pub const EXTENDED: u8 = 1 << 2;
}

/// Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyController {
    /// VID: PCI vendor ID; zero without PCI.
    pub vid: u16,
    /// SSVID: PCI subsystem vendor ID.
    pub ssvid: u16,
    /// SN: serial number of the subsystem.
    pub sn: AsciiField<20>,
    /// MN: model number.
    pub mn: AsciiField<40>,
    /// FR: firmware revision.
    pub fr: AsciiField<8>,
    /// RAB: recommended arbitration burst, as a base-2 logarithm.
    pub rab: u8,
    /// CMIC: bit 0 several ports, bit 1 several controllers.
    pub cmic: u8,
    /// MDTS: maximum data transfer size, as a base-2 logarithm in units of the minimum page size;
    /// zero for no limit.
    pub mdts: u8,
    /// CNTLID: controller ID.
    pub cntlid: u16,
    /// VER: version, see [`crate::nvme::fabrics::version`].
    pub ver: u32,
    /// OAES: optional asynchronous events, see [`crate::nvme::command::events`].
    pub oaes: u32,
    /// CTRATT: controller attributes, see [`ctratt`].
    pub ctratt: u32,
    /// CNTRLTYPE: controller type.
    pub kind: ControllerType,
    /// OACS: optional admin commands.
    pub oacs: u16,
    /// ACL: maximum outstanding Abort commands, less one.
    pub acl: u8,
    /// AERL: maximum outstanding asynchronous event requests, less one.
    pub aerl: u8,
    /// FRMW: bit 0 the first firmware slot is read only, bits 3:1 number of slots.
    pub frmw: u8,
    /// LPA: log page attributes, see [`lpa`].
    pub lpa: u8,
    /// ELPE: number of error log entries, less one.
    pub elpe: u8,
    /// NPSS: number of power states, less one.
    pub npss: u8,
    /// WCTEMP and CCTEMP: warning and critical temperature thresholds, in kelvin.
    pub temperatures: [u16; 2],
    /// KAS: granularity of the keep alive timer in units of 100 ms.
    pub kas: u16,
    /// SQES: base-2 logarithms of the minimum (bits 3:0) and maximum (bits 7:4) submission queue
    /// entry size: 0x66.
    pub sqes: u8,
    /// CQES: the same for completion queue entries: 0x44.
    pub cqes: u8,
    /// MAXCMD: maximum outstanding commands of a queue.
    pub maxcmd: u16,
    /// NN: largest valid namespace ID.
    pub nn: u32,
    /// ONCS: optional commands, see [`oncs`].
    pub oncs: u16,
    /// FUSES: fused operation support.
    pub fuses: u16,
    /// VWC: volatile write cache, see [`vwc`].
    pub vwc: u8,
    /// AWUN and AWUPF: blocks that are written atomically, less one, in normal operation and on
    /// power failure.
    pub atomic: [u16; 2],
    /// SGLS: SGL support, see [`sgls`].
    pub sgls: u32,
    /// MNAN: maximum number of allowed namespaces.
    pub mnan: u32,
    /// SUBNQN: NQN of the subsystem; `None` if it is not valid.
    pub subnqn: Option<Nqn>,
    /// IOCCSZ: maximum I/O command capsule size, in units of 16 bytes.
    pub ioccsz: u32,
    /// IORCSZ: maximum I/O response capsule size, in units of 16 bytes.
    pub iorcsz: u32,
    /// ICDOFF: in-capsule data offset after the entry, in units of 16 bytes.
    pub icdoff: u16,
    /// FCATT: bit 0, the controller uses the static controller model.
    pub fcatt: u8,
    /// MSDBD: maximum SGL data block descriptors of a command.
    pub msdbd: u8,
    /// OFCS: bit 0, the Disconnect command is supported.
    pub ofcs: u16,
}

impl IdentifyController {
    /// Parses the structure.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        let (byte, half, word) =
            (|at| u8_at(bytes, at), |at| u16_at(bytes, at), |at| u32_at(bytes, at));
        Self {
            vid: half(0),
            ssvid: half(2),
            sn: AsciiField::at(bytes, 4),
            mn: AsciiField::at(bytes, 24),
            fr: AsciiField::at(bytes, 64),
            rab: byte(72),
            cmic: byte(76),
            mdts: byte(77),
            cntlid: half(78),
            ver: word(80),
            oaes: word(92),
            ctratt: word(96),
            kind: ControllerType::from_byte(byte(111)),
            oacs: half(256),
            acl: byte(258),
            aerl: byte(259),
            frmw: byte(260),
            lpa: byte(261),
            elpe: byte(262),
            npss: byte(263),
            temperatures: [266, 268].map(half),
            kas: half(320),
            sqes: byte(512),
            cqes: byte(513),
            maxcmd: half(514),
            nn: word(516),
            oncs: half(520),
            fuses: half(522),
            vwc: byte(525),
            atomic: [526, 528].map(half),
            sgls: word(536),
            mnan: word(540),
            subnqn: Nqn::from_field(&get::<NQN_FIELD_BYTES>(bytes, 768)),
            ioccsz: word(1792),
            iorcsz: word(1796),
            icdoff: half(1800),
            fcatt: byte(1802),
            msdbd: byte(1803),
            ofcs: half(1804),
        }
    }

    /// Writes the structure over `out`.
    pub fn write(&self, out: &mut [u8; BYTES]) {
        out.fill(0);
        self.write_capabilities(out);
        put(out, 256, &self.oacs.to_le_bytes());
        put(out, 258, &[self.acl, self.aerl, self.frmw, self.lpa, self.elpe, self.npss]);
        for (at, kelvin) in [266, 268].into_iter().zip(self.temperatures) {
            put(out, at, &kelvin.to_le_bytes());
        }
        put(out, 320, &self.kas.to_le_bytes());
        put(out, 512, &[self.sqes, self.cqes]);
        put(out, 514, &self.maxcmd.to_le_bytes());
        put(out, 516, &self.nn.to_le_bytes());
        put(out, 520, &self.oncs.to_le_bytes());
        put(out, 522, &self.fuses.to_le_bytes());
        put(out, 525, &[self.vwc]);
        for (at, blocks) in [526, 528].into_iter().zip(self.atomic) {
            put(out, at, &blocks.to_le_bytes());
        }
        put(out, 536, &self.sgls.to_le_bytes());
        put(out, 540, &self.mnan.to_le_bytes());
        put(out, 768, self.subnqn.as_ref().map_or("", Nqn::as_str).as_bytes());
        put(out, 1792, &self.ioccsz.to_le_bytes());
        put(out, 1796, &self.iorcsz.to_le_bytes());
        put(out, 1800, &self.icdoff.to_le_bytes());
        put(out, 1802, &[self.fcatt, self.msdbd]);
        put(out, 1804, &self.ofcs.to_le_bytes());
    }

    /// Writes the first 256 bytes.
    fn write_capabilities(&self, out: &mut [u8; BYTES]) {
        put(out, 0, &self.vid.to_le_bytes());
        put(out, 2, &self.ssvid.to_le_bytes());
        put(out, 4, &self.sn.0);
        put(out, 24, &self.mn.0);
        put(out, 64, &self.fr.0);
        put(out, 72, &[self.rab]);
        put(out, 76, &[self.cmic, self.mdts]);
        put(out, 78, &self.cntlid.to_le_bytes());
        put(out, 80, &self.ver.to_le_bytes());
        put(out, 92, &self.oaes.to_le_bytes());
        put(out, 96, &self.ctratt.to_le_bytes());
        put(out, 111, &[self.kind.to_byte()]);
    }
}
