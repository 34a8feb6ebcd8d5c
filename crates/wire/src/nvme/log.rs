//! Log pages returned by Get Log Page (base section 5.16.1; fabrics section 5.4).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str;

use super::identify::AsciiField;
use super::nqn::{NQN_FIELD_BYTES, Nqn};
use super::status::NvmeStatus;
use super::{get, put, u8_at, u16_at, u32_at, u64_at, u128_at};

/// Log page identifiers.
pub mod lid {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Error information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / health information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slot information.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed namespace list.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Length of the page of supported log pages.
pub const SUPPORTED_BYTES: usize = 1024;
/// Length of the changed namespace list.
pub const CHANGED_NAMESPACES_BYTES: usize = 4096;
/// The only entry of the changed namespace list if there are too many changed namespaces.
pub const CHANGED_TOO_MANY: u32 = u32::MAX;

/// Writes the page of supported log pages over `out`.
pub fn write_supported(lids: &[u8], out: &mut [u8; SUPPORTED_BYTES]) {
    out.fill(0);
    for lid in lids {
        put(out, usize::from(*lid) * 4, &[1]);
    }
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorLogEntry {
    /// Count of errors up to this one; zero for an unused entry.
    pub count: u64,
    /// Submission queue of the command.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status of the command.
    pub status: NvmeStatus,
    /// Invalid byte (7:0) and bit (10:8) of the command; all ones if unknown.
    pub location: u16,
    /// First block that could not be accessed.
    pub lba: u64,
    /// Namespace of the command.
    pub nsid: u32,
}

impl ErrorLogEntry {
    /// Length of an entry.
    pub const BYTES: usize = 64;

    /// Parses an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            count: u64_at(bytes, 0),
            sqid: u16_at(bytes, 8),
            cid: u16_at(bytes, 10),
            status: NvmeStatus::from_field(u16_at(bytes, 12)),
            location: u16_at(bytes, 14),
            lba: u64_at(bytes, 16),
            nsid: u32_at(bytes, 24),
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, &self.count.to_le_bytes());
        put(&mut out, 8, &self.sqid.to_le_bytes());
        put(&mut out, 10, &self.cid.to_le_bytes());
        put(&mut out, 12, &self.status.to_field().to_le_bytes());
        put(&mut out, 14, &self.location.to_le_bytes());
        put(&mut out, 16, &self.lba.to_le_bytes());
        put(&mut out, 24, &self.nsid.to_le_bytes());
        out
    }
}

/// SMART / health information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HealthLog {
    /// Critical warnings: bit 0 spare, bit 1 temperature, bit 2 reliability, bit 3 read only.
    pub warnings: u8,
    /// Temperature in kelvin.
    pub temperature: u16,
    /// Available spare, threshold of available spare, and used part of the lifetime, in percent.
    pub percent: [u8; 3],
    /// Data units read and written; a unit is 1000 times 512 bytes, rounded up.
    pub data_units: [u128; 2],
    /// Read commands and write commands.
    pub commands: [u128; 2],
    /// Controller busy time in minutes.
    pub busy_min: u128,
    /// Power cycles.
    pub power_cycles: u128,
    /// Powered-on time in hours.
    pub power_on_h: u128,
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: u128,
    /// Media and data integrity errors.
    pub media_errors: u128,
    /// Error log entries over the lifetime.
    pub error_entries: u128,
}

impl HealthLog {
    /// Length of the page.
    pub const BYTES: usize = 512;

    /// Parses a page.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let wide = |at| u128_at(bytes, at);
        Self {
            warnings: u8_at(bytes, 0),
            temperature: u16_at(bytes, 1),
            percent: get(bytes, 3),
            data_units: [32, 48].map(wide),
            commands: [64, 80].map(wide),
            busy_min: wide(96),
            power_cycles: wide(112),
            power_on_h: wide(128),
            unsafe_shutdowns: wide(144),
            media_errors: wide(160),
            error_entries: wide(176),
        }
    }

    /// Encodes the page.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, &[self.warnings]);
        put(&mut out, 1, &self.temperature.to_le_bytes());
        put(&mut out, 3, &self.percent);
        let [read, written] = self.data_units;
        let [reads, writes] = self.commands;
        let counts = [
            read,
            written,
            reads,
            writes,
            self.busy_min,
            self.power_cycles,
            self.power_on_h,
            self.unsafe_shutdowns,
            self.media_errors,
            self.error_entries,
        ];
        for (at, count) in (32..).step_by(16).zip(counts) {
            put(&mut out, at, &count.to_le_bytes());
        }
        out
    }
}

/// Firmware slot information of a controller with one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareLog {
    /// AFI: active firmware slot in bits 2:0.
    pub active: u8,
    /// Firmware revision in slot 1.
    pub revision: AsciiField<8>,
}

impl FirmwareLog {
    /// Length of the page.
    pub const BYTES: usize = 512;

    /// Encodes the page.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, &[self.active]);
        put(&mut out, 8, self.revision.as_bytes());
        out
    }
}

/// Commands supported and effects: one dword per opcode.
pub mod effect {
    /// Length of the page.
    pub const BYTES: usize = 4096;
    /// Offset of the dwords of I/O commands; those of admin commands precede them.
    pub const IO: usize = 1024;
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// LBCC: the command may change data.
    pub const CHANGES_DATA: u32 = 1 << 1;
}

/// Writes the effects of admin and I/O commands, listed by opcode, over `out`.
pub fn write_effects(admin: &[(u8, u32)], io: &[(u8, u32)], out: &mut [u8; effect::BYTES]) {
    out.fill(0);
    for (base, commands) in [(0, admin), (effect::IO, io)] {
        for (opcode, effects) in commands {
            put(out, base + usize::from(*opcode) * 4, &effects.to_le_bytes());
        }
    }
}

/// Returns the effects of an I/O command.
#[must_use]
pub fn io_effects(bytes: &[u8; effect::BYTES], opcode: u8) -> u32 {
    u32_at(bytes, effect::IO + usize::from(opcode) * 4)
}

/// Returns the effects of an admin command.
#[must_use]
pub fn admin_effects(bytes: &[u8; effect::BYTES], opcode: u8) -> u32 {
    u32_at(bytes, usize::from(opcode) * 4)
}

/// Header of the discovery log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryHeader {
    /// GENCTR: generation counter, which changes with the page.
    pub generation: u64,
    /// NUMREC: number of entries.
    pub records: u64,
    /// RECFMT: record format, zero.
    pub format: u16,
}

impl DiscoveryHeader {
    /// Length of the header.
    pub const BYTES: usize = 1024;

    /// Parses a header; its first 18 bytes suffice.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 18] = bytes.first_chunk()?;
        let [generation, records] = [0, 8].map(|at| u64_at(bytes, at));
        Some(Self { generation, records, format: u16_at(bytes, 16) })
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &self.records.to_le_bytes());
        put(&mut out, 16, &self.format.to_le_bytes());
        out
    }
}

/// TRTYPE: NVMe/TCP.
pub const TRTYPE_TCP: u8 = 3;

/// SUBTYPE: kind of subsystem at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscoverySubtype {
    /// Referral to another discovery service.
    Referral,
    /// Subsystem with namespaces.
    Nvm,
    /// The current discovery subsystem.
    Discovery,
    /// Reserved value.
    Other(u8),
}

impl DiscoverySubtype {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Referral,
            2 => Self::Nvm,
            3 => Self::Discovery,
            other => Self::Other(other),
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Referral => 1,
            Self::Nvm => 2,
            Self::Discovery => 3,
            Self::Other(other) => other,
        }
    }
}

/// Bits of TREQ: transport requirements.
pub mod treq {
    /// Mask of the secure channel requirement.
    pub const SECURE: u8 = 0x03;
    /// A secure channel is required.
    pub const SECURE_REQUIRED: u8 = 0x01;
    /// A secure channel is not required.
    pub const SECURE_NOT_REQUIRED: u8 = 0x02;
    /// The controller can disable submission queue flow control.
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 0x04;
}

/// SECTYPE of TSAS: security of the TCP connection (tcp section 3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscoverySecurity {
    /// No security.
    None,
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
    /// Reserved value.
    Other(u8),
}

impl DiscoverySecurity {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::None,
            1 => Self::Tls12,
            2 => Self::Tls13,
            other => Self::Other(other),
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tls12 => 1,
            Self::Tls13 => 2,
            Self::Other(other) => other,
        }
    }
}

/// An entry of the discovery log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// TRTYPE: transport type, [`TRTYPE_TCP`].
    pub trtype: u8,
    /// SUBTYPE: subsystem type.
    pub kind: DiscoverySubtype,
    /// TREQ: transport requirements, see [`treq`].
    pub treq: u8,
    /// PORTID: port identifier.
    pub port_id: u16,
    /// CNTLID: controller ID; [`super::fabrics::CNTLID_DYNAMIC`] in the dynamic controller model.
    pub cntlid: u16,
    /// ASQSZ: maximum entries of the admin submission queue.
    pub admin_queue: u16,
    /// EFLAGS: entry flags.
    pub flags: u16,
    /// TRADDR and ADRFAM: address; `None` if it is not an IP address.
    pub addr: Option<IpAddr>,
    /// TRSVCID: port; `None` if it is not a number.
    pub port: Option<u16>,
    /// SUBNQN: NQN of the subsystem; `None` if it is not valid.
    pub subnqn: Option<Nqn>,
    /// SECTYPE of TSAS: security of the connection.
    pub security: DiscoverySecurity,
}

const IPV4: u8 = 1;
const IPV6: u8 = 2;

impl DiscoveryEntry {
    /// Length of an entry.
    pub const BYTES: usize = 1024;

    /// Parses an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let (service, address) = (get::<32>(bytes, 32), get::<256>(bytes, 512));
        let addr = match u8_at(bytes, 1) {
            IPV4 => text(&address).and_then(|text| text.parse().ok()).map(IpAddr::V4),
            IPV6 => text(&address).and_then(|text| text.parse().ok()).map(IpAddr::V6),
            _ => None,
        };
        Self {
            trtype: u8_at(bytes, 0),
            kind: DiscoverySubtype::from_byte(u8_at(bytes, 2)),
            treq: u8_at(bytes, 3),
            port_id: u16_at(bytes, 4),
            cntlid: u16_at(bytes, 6),
            admin_queue: u16_at(bytes, 8),
            flags: u16_at(bytes, 10),
            addr,
            port: text(&service).and_then(|text| text.parse().ok()),
            subnqn: Nqn::from_field(&get::<NQN_FIELD_BYTES>(bytes, 256)),
            security: DiscoverySecurity::from_byte(u8_at(bytes, 768)),
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let family = match self.addr {
            Some(IpAddr::V4(_)) => IPV4,
            Some(IpAddr::V6(_)) => IPV6,
            None => 0,
        };
        put(&mut out, 0, &[self.trtype, family, self.kind.to_byte(), self.treq]);
        for (at, field) in
            [(4, self.port_id), (6, self.cntlid), (8, self.admin_queue), (10, self.flags)]
        {
            put(&mut out, at, &field.to_le_bytes());
        }
        if let Some(port) = self.port {
            write_text(&port, out.get_mut(32..64));
        }
        put(&mut out, 256, self.subnqn.as_ref().map_or("", Nqn::as_str).as_bytes());
        match self.addr {
            Some(IpAddr::V4(addr)) => write_text::<Ipv4Addr>(&addr, out.get_mut(512..768)),
            Some(IpAddr::V6(addr)) => write_text::<Ipv6Addr>(&addr, out.get_mut(512..768)),
            None => {}
        }
        put(&mut out, 768, &[self.security.to_byte()]);
        out
    }
}

/// Returns the text in a field padded with zeros or spaces; `None` if it is not UTF-8.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    Some(str::from_utf8(field.get(..end)?).ok()?.trim_end_matches(' '))
}

/// Writes the displayed form of `value` to a field, up to the first part that does not fit.
fn write_text<T: core::fmt::Display>(value: &T, field: Option<&mut [u8]>) {
    struct Field<'a>(&'a mut [u8]);

    impl core::fmt::Write for Field<'_> {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let out = core::mem::take(&mut self.0);
            let (here, rest) = out.split_at_mut_checked(text.len()).ok_or(core::fmt::Error)?;
            here.copy_from_slice(text.as_bytes());
            self.0 = rest;
            Ok(())
        }
    }

    if let Some(field) = field {
        // A port has at most 5 characters and an IP address at most 45, so both fit.
        let _ = core::fmt::write(&mut Field(field), format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(addr: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            trtype: TRTYPE_TCP,
            kind: DiscoverySubtype::Nvm,
            treq: treq::SECURE_REQUIRED | treq::DISABLE_SQ_FLOW_CONTROL,
            port_id: 1,
            cntlid: super::super::fabrics::CNTLID_DYNAMIC,
            admin_queue: 32,
            flags: 0,
            addr: addr.parse().ok(),
            port: Some(4420),
            subnqn: Nqn::new("nqn.2026-11.example:disks"),
            security: DiscoverySecurity::Tls13,
        }
    }

    #[test]
    fn discovery() {
        let bytes = entry("192.0.2.17").to_bytes();
        assert_eq!(bytes[..12], [3, 1, 2, 5, 1, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!(&bytes[32..37], b"4420\0");
        assert_eq!(&bytes[256..281], b"nqn.2026-11.example:disks");
        assert_eq!((&bytes[512..523], bytes[768]), (b"192.0.2.17\0".as_slice(), 2));
        assert_eq!(DiscoveryEntry::parse(&bytes), entry("192.0.2.17"));
        let long = entry("2001:db8:1111:2222:3333:4444:5555:6666");
        let bytes = long.to_bytes();
        assert_eq!((bytes[1], DiscoveryEntry::parse(&bytes)), (2, long));
        // Some targets pad fields with spaces.
        let mut bytes = entry("192.0.2.17").to_bytes();
        bytes[36..64].fill(b' ');
        assert_eq!(DiscoveryEntry::parse(&bytes).port, Some(4420));
        let header = DiscoveryHeader { generation: 3, records: 2, format: 0 };
        assert_eq!(header.to_bytes()[..10], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(DiscoveryHeader::parse(&header.to_bytes()), Some(header));
        assert_eq!(DiscoveryHeader::parse(&[0; 17]), None);
    }

    #[test]
    fn pages() {
        let mut effects = [0xee; effect::BYTES];
        let writes = effect::SUPPORTED | effect::CHANGES_DATA;
        write_effects(&[(0x06, effect::SUPPORTED)], &[(0x01, writes)], &mut effects);
        assert_eq!((effects[24], effects[1028], effects[1032], effects[4095]), (1, 3, 0, 0));
        assert_eq!((io_effects(&effects, 1), io_effects(&effects, 255)), (3, 0));
        assert_eq!((admin_effects(&effects, 6), admin_effects(&effects, 5)), (1, 0));
        let mut supported = [0xee; SUPPORTED_BYTES];
        write_supported(&[0, 0xff], &mut supported);
        assert_eq!((supported[0], supported[4], supported[1020]), (1, 0, 1));
        let firmware = FirmwareLog { active: 1, revision: AsciiField::new("0.1") }.to_bytes();
        assert_eq!((firmware[0], &firmware[8..16]), (1, b"0.1     ".as_slice()));
        let health = HealthLog { temperature: 300, media_errors: 5, ..HealthLog::default() };
        let bytes = health.to_bytes();
        assert_eq!((bytes[1], bytes[2], bytes[160]), (44, 1, 5));
        let error = ErrorLogEntry {
            count: 1,
            sqid: 2,
            cid: 3,
            status: NvmeStatus::LBA_OUT_OF_RANGE,
            location: 0xffff,
            lba: 5,
            nsid: 6,
        };
        assert_eq!(error.to_bytes()[8..18], [2, 0, 3, 0, 0, 1, 0xff, 0xff, 5, 0]);
    }

    proptest! {
        #[test]
        fn pages_are_read_as_written(bytes in proptest::collection::vec(any::<u8>(), 1024)) {
            let entry = DiscoveryEntry::parse(&get(&bytes, 0));
            let mut again = entry;
            again.addr = None;
            prop_assert_eq!(DiscoveryEntry::parse(&entry.to_bytes()).addr, entry.addr);
            prop_assert_eq!(DiscoveryEntry::parse(&again.to_bytes()), again);
            let health = HealthLog::parse(&get(&bytes, 0));
            prop_assert_eq!(HealthLog::parse(&health.to_bytes()), health);
            let error = ErrorLogEntry::parse(&get(&bytes, 0));
            prop_assert_eq!(ErrorLogEntry::parse(&error.to_bytes()), error);
            let header = DiscoveryHeader::parse(&bytes).unwrap();
            prop_assert_eq!(DiscoveryHeader::parse(&header.to_bytes()), Some(header));
        }
    }
}
