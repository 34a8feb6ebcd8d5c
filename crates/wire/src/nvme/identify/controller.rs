//! Identify Controller (base, section 5.17.2.1).

use super::{BYTES, Text};
use crate::nvme::nqn::{NQN_FIELD_BYTES, Nqn};
use crate::nvme::{get, put, u8_at, u16_at, u32_at};

/// What kind of controller it is: CNTRLTYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControllerType {
    /// Not said: before 1.4.
    Unknown,
    /// With I/O queues.
    Io,
    /// Of the discovery subsystem.
    Discovery,
    /// Administrative.
    Admin,
    /// Reserved.
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

/// Optional commands of the NVM command set: ONCS.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save and select fields of features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Controller attributes: CTRATT.
pub mod ctratt {
    /// Host identifiers of 16 bytes.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Traffic based keep alive: any command counts.
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
}

/// Scatter gather lists: SGLS.
pub mod sgls {
    /// Supported, without alignment.
    pub const SUPPORTED: u32 = 1 << 0;
    /// An address may be an offset: data in capsules.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport data blocks.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// Volatile write cache: VWC.
pub mod vwc {
    /// There is one.
    pub const PRESENT: u8 = 1 << 0;
    /// Flush takes the namespace ID of all: bits 2:1 are 3.
    pub const FLUSH_ALL: u8 = 3 << 1;
    /// Flush does not take it: bits 2:1 are 2.
    pub const FLUSH_ONE: u8 = 2 << 1;
}

/// Log pages: LPA.
pub mod lpa {
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 1 << 1;
    /// Offsets and long lengths.
    pub const EXTENDED: u8 = 1 << 2;
}

/// Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller {
    /// VID: PCI vendor; zero without PCI.
    pub vid: u16,
    /// SSVID: PCI subsystem vendor.
    pub ssvid: u16,
    /// SN: serial number of the subsystem.
    pub sn: Text<20>,
    /// MN: model.
    pub mn: Text<40>,
    /// FR: firmware revision.
    pub fr: Text<8>,
    /// RAB: recommended arbitration burst, 2 to the power of this.
    pub rab: u8,
    /// CMIC: bit 0 several ports, bit 1 several controllers.
    pub cmic: u8,
    /// MDTS: most data of a command, 2 to the power of this in smallest pages; zero for no limit.
    pub mdts: u8,
    /// CNTLID.
    pub cntlid: u16,
    /// VER: see [`crate::nvme::fabrics::version`].
    pub ver: u32,
    /// OAES: see [`crate::nvme::command::events`].
    pub oaes: u32,
    /// CTRATT: see [`ctratt`].
    pub ctratt: u32,
    /// CNTRLTYPE.
    pub kind: ControllerType,
    /// OACS: optional admin commands.
    pub oacs: u16,
    /// ACL: one less than the most aborts at one time.
    pub acl: u8,
    /// AERL: one less than the most asynchronous event requests at one time.
    pub aerl: u8,
    /// FRMW: firmware slots, in bits 3:1; bit 0 that the first is read only.
    pub frmw: u8,
    /// LPA: see [`lpa`].
    pub lpa: u8,
    /// ELPE: one less than the entries of the error log.
    pub elpe: u8,
    /// NPSS: one less than the power states.
    pub npss: u8,
    /// WCTEMP and CCTEMP: where it gets too warm, in kelvin.
    pub temperatures: [u16; 2],
    /// KAS: granularity of the keep alive timer, in 100 ms.
    pub kas: u16,
    /// SQES: least (bits 3:0) and most bytes of an entry, as powers of 2: 0x66.
    pub sqes: u8,
    /// CQES: the same of completions: 0x44.
    pub cqes: u8,
    /// MAXCMD: most commands at one time in a queue.
    pub maxcmd: u16,
    /// NN: the largest namespace ID.
    pub nn: u32,
    /// ONCS: see [`oncs`].
    pub oncs: u16,
    /// FUSES: fused operations.
    pub fuses: u16,
    /// VWC: see [`vwc`].
    pub vwc: u8,
    /// AWUN and AWUPF: one less than the blocks that are written at once, or not at all, in normal
    /// operation and when power fails.
    pub atomic: [u16; 2],
    /// SGLS: see [`sgls`].
    pub sgls: u32,
    /// MNAN: most namespaces.
    pub mnan: u32,
    /// SUBNQN; none where it is not valid.
    pub subnqn: Option<Nqn>,
    /// IOCCSZ: most bytes of a command capsule on an I/O queue, in units of 16.
    pub ioccsz: u32,
    /// IORCSZ: the same of a response.
    pub iorcsz: u32,
    /// ICDOFF: where in-capsule data begins behind the entry, in units of 16 bytes.
    pub icdoff: u16,
    /// FCATT: bit 0 that the controller is of the static model.
    pub fcatt: u8,
    /// MSDBD: most data descriptors of a command.
    pub msdbd: u8,
    /// OFCS: bit 0 that I/O queues can be disconnected.
    pub ofcs: u16,
}

impl Controller {
    /// Reads a structure.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        let (byte, half, word) =
            (|at| u8_at(bytes, at), |at| u16_at(bytes, at), |at| u32_at(bytes, at));
        Self {
            vid: half(0),
            ssvid: half(2),
            sn: Text::at(bytes, 4),
            mn: Text::at(bytes, 24),
            fr: Text::at(bytes, 64),
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

    /// The first 256 bytes.
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
