//! Data structures of Identify (base section 5.17.2; nvm section 4.1.5), 4096 bytes each. The
//! structures have the fields that a controller backed by files fills in and that initiators read.
//! All other fields are written as zero and ignored when parsed.

mod controller;

use core::str;

pub use controller::{ControllerType, IdentifyController, ctratt, lpa, oncs, sgls, vwc};

use super::{get, put, u8_at, u16_at, u32_at, u64_at};

/// Length of Identify data.
pub const BYTES: usize = 4096;

/// CNS values: controller or namespace structure.
pub mod cns {
    /// Namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces above the command's namespace ID.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Namespace of an I/O command set.
    pub const NAMESPACE_IO: u8 = 0x05;
    /// Controller, specific to an I/O command set.
    pub const CONTROLLER_IO: u8 = 0x06;
    /// Active namespaces of an I/O command set.
    pub const ACTIVE_NAMESPACES_IO: u8 = 0x07;
    /// Namespace, independent of the I/O command set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// Allocated namespaces.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
    /// Supported combinations of I/O command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;
/// Maximum namespaces in a list.
pub const NAMESPACES_MAX: usize = BYTES / 4;
/// Maximum controllers in a list.
pub const CONTROLLERS_MAX: usize = BYTES / 2 - 1;

/// ASCII text of up to `N` bytes, padded with spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsciiField<const N: usize>([u8; N]);

impl<const N: usize> AsciiField<N> {
    /// Creates a field from up to `N` characters; others than printable ASCII become a question
    /// mark.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut field = [b' '; N];
        for (to, from) in field.iter_mut().zip(text.chars()) {
            *to = if matches!(from, ' '..='~') { from as u8 } else { b'?' };
        }
        Self(field)
    }

    fn at(bytes: &[u8], at: usize) -> Self {
        Self(get(bytes, at))
    }

    /// Returns the whole field.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Returns the text without padding; empty if the peer's bytes are not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or("").trim_end_matches([' ', '\0'])
    }
}

/// Identify Namespace of the NVM command set, with up to 16 LBA formats as in NVMe 1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks.
    pub nsze: u64,
    /// NCAP: capacity, the blocks that may be allocated at a time.
    pub ncap: u64,
    /// NUSE: utilization, the blocks that are allocated.
    pub nuse: u64,
    /// NSFEAT: bit 0 thin provisioning, bit 4 valid fields on optimal writes.
    pub nsfeat: u8,
    /// FLBAS: index of the LBA format in bits 3:0.
    pub flbas: u8,
    /// NMIC: bit 0, several controllers may share the namespace.
    pub nmic: u8,
    /// RESCAP: reservation capabilities.
    pub rescap: u8,
    /// DLFEAT: bits 2:0 content of deallocated blocks (1: zeros), bit 3 Write Zeroes may
    /// deallocate.
    pub dlfeat: u8,
    /// NAWUN, NAWUPF, NACWU: atomic write units, as in Identify Controller.
    pub atomic: [u16; 3],
    /// NOIOB: optimal I/O boundary in blocks; zero if there is none.
    pub noiob: u16,
    /// NPWG, NPWA, NPDG, NPDA, NOWS: preferred granularity and alignment of writes and of
    /// deallocations, and optimal write size, in blocks less one.
    pub preferred: [u16; 5],
    /// NGUID: globally unique identifier; zeros if there is none.
    pub nguid: [u8; 16],
    /// EUI64: IEEE identifier; zeros if there is none.
    pub eui64: [u8; 8],
    /// NSATTR: bit 0, the namespace is write protected.
    pub nsattr: u8,
    /// NLBAF: number of supported LBA formats, less one.
    pub nlbaf: u8,
    /// LBAF: LBA formats.
    pub lbaf: [LbaFormat; 16],
}

/// Format of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LbaFormat {
    /// MS: length of the metadata in bytes.
    pub metadata: u16,
    /// LBADS: base-2 logarithm of the block size in bytes, at least 9; zero for an unsupported
    /// format.
    pub shift: u8,
    /// RP: relative performance, 0 (best) to 3.
    pub performance: u8,
}

impl IdentifyNamespace {
    /// Creates a namespace with `blocks` blocks, all allocated, and one LBA format.
    #[must_use]
    pub const fn new(blocks: u64, shift: u8) -> Self {
        let mut lbaf = [LbaFormat { metadata: 0, shift: 0, performance: 0 }; 16];
        lbaf[0].shift = shift;
        Self {
            nsze: blocks,
            ncap: blocks,
            nuse: blocks,
            nsfeat: 0,
            flbas: 0,
            nmic: 0,
            rescap: 0,
            dlfeat: 0,
            atomic: [0; 3],
            noiob: 0,
            preferred: [0; 5],
            nguid: [0; 16],
            eui64: [0; 8],
            nsattr: 0,
            nlbaf: 0,
            lbaf,
        }
    }

    /// Returns the LBA format in use; `None` if it is not among those supported.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        let index = usize::from(self.flbas & 0xf);
        let known = index <= usize::from(self.nlbaf);
        self.lbaf.get(index).copied().filter(|_| known)
    }

    /// Parses the structure.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        let format = |at: usize| LbaFormat {
            metadata: u16_at(bytes, at),
            shift: u8_at(bytes, at + 2),
            performance: u8_at(bytes, at + 3) & 3,
        };
        Self {
            nsze: u64_at(bytes, 0),
            ncap: u64_at(bytes, 8),
            nuse: u64_at(bytes, 16),
            nsfeat: u8_at(bytes, 24),
            nlbaf: u8_at(bytes, 25),
            flbas: u8_at(bytes, 26),
            nmic: u8_at(bytes, 30),
            rescap: u8_at(bytes, 31),
            dlfeat: u8_at(bytes, 33),
            atomic: [34, 36, 38].map(|at| u16_at(bytes, at)),
            noiob: u16_at(bytes, 46),
            preferred: [64, 66, 68, 70, 72].map(|at| u16_at(bytes, at)),
            nsattr: u8_at(bytes, 99),
            nguid: get(bytes, 104),
            eui64: get(bytes, 120),
            lbaf: core::array::from_fn(|index| format(128 + 4 * index)),
        }
    }

    /// Writes the structure over `out`.
    pub fn write(&self, out: &mut [u8; BYTES]) {
        out.fill(0);
        put(out, 0, &self.nsze.to_le_bytes());
        put(out, 8, &self.ncap.to_le_bytes());
        put(out, 16, &self.nuse.to_le_bytes());
        put(out, 24, &[self.nsfeat, self.nlbaf, self.flbas]);
        put(out, 30, &[self.nmic, self.rescap]);
        put(out, 33, &[self.dlfeat]);
        for (at, blocks) in [34, 36, 38].into_iter().zip(self.atomic) {
            put(out, at, &blocks.to_le_bytes());
        }
        put(out, 46, &self.noiob.to_le_bytes());
        for (at, blocks) in [64, 66, 68, 70, 72].into_iter().zip(self.preferred) {
            put(out, at, &blocks.to_le_bytes());
        }
        put(out, 99, &[self.nsattr]);
        put(out, 104, &self.nguid);
        put(out, 120, &self.eui64);
        for (at, format) in (128..).step_by(4).zip(self.lbaf) {
            put(out, at, &format.metadata.to_le_bytes());
            put(out, at + 2, &[format.shift, format.performance & 3]);
        }
    }
}

/// A namespace identification descriptor (base figure 277).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor {
    /// IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// UUID (RFC 9562).
    Uuid([u8; 16]),
    /// I/O command set of the namespace.
    Csi(u8),
}

impl NamespaceDescriptor {
    fn kind_and_value(&self) -> (u8, &[u8]) {
        match self {
            Self::Eui64(value) => (1, value),
            Self::Nguid(value) => (2, value),
            Self::Uuid(value) => (3, value),
            Self::Csi(value) => (4, core::slice::from_ref(value)),
        }
    }

    /// Writes a list of descriptors over `out`; what does not fit is dropped.
    pub fn write_all(descriptors: &[Self], out: &mut [u8; BYTES]) {
        out.fill(0);
        let mut at = 0;
        for descriptor in descriptors {
            let (kind, value) = descriptor.kind_and_value();
            let Ok(len) = u8::try_from(value.len()) else { continue };
            put(out, at, &[kind, len]);
            put(out, at + 4, value);
            at += 4 + value.len();
        }
    }

    /// Parses a list of descriptors; those of unknown types or wrong lengths are skipped.
    pub fn parse_all(bytes: &[u8; BYTES]) -> impl Iterator<Item = Self> + '_ {
        let mut rest: &[u8] = bytes;
        let raw = core::iter::from_fn(move || {
            let [kind, len, _, _, behind @ ..] = rest else { return None };
            let (value, behind) = behind.split_at_checked(usize::from(*len))?;
            rest = behind;
            // A length of zero ends the list.
            (*len != 0).then_some((*kind, value))
        });
        raw.filter_map(|(kind, value)| {
            Some(match (kind, value.len()) {
                (1, 8) => Self::Eui64(get(value, 0)),
                (2, 16) => Self::Nguid(get(value, 0)),
                (3, 16) => Self::Uuid(get(value, 0)),
                (4, 1) => Self::Csi(u8_at(value, 0)),
                _ => return None,
            })
        })
    }
}

/// Writes a namespace list over `out`: the IDs above `above`. `ids` must ascend; at most
/// [`NAMESPACES_MAX`] fit.
pub fn write_namespaces(above: u32, ids: impl Iterator<Item = u32>, out: &mut [u8; BYTES]) {
    out.fill(0);
    for (to, id) in out.chunks_exact_mut(4).zip(ids.filter(|id| *id > above)) {
        put(to, 0, &id.to_le_bytes());
    }
}

/// Parses a namespace list, which ends at the first zero.
pub fn namespaces(bytes: &[u8; BYTES]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|id| u32_at(id, 0)).take_while(|id| *id != 0)
}

/// Writes a controller list over `out`: the IDs from `from` on. `ids` must ascend; at most
/// [`CONTROLLERS_MAX`] fit.
pub fn write_controllers(from: u16, ids: impl Iterator<Item = u16>, out: &mut [u8; BYTES]) {
    out.fill(0);
    let (head, list) = out.split_at_mut(2);
    let mut count: u16 = 0;
    for (to, id) in list.chunks_exact_mut(2).zip(ids.filter(|id| *id >= from)) {
        put(to, 0, &id.to_le_bytes());
        count += 1;
    }
    put(head, 0, &count.to_le_bytes());
}

/// Parses a controller list.
pub fn controllers(bytes: &[u8; BYTES]) -> impl Iterator<Item = u16> + '_ {
    let count = usize::from(u16_at(bytes, 0));
    bytes.chunks_exact(2).skip(1).take(count).map(|id| u16_at(id, 0))
}

/// Identify Namespace, independent of the I/O command set ([`cns::NAMESPACE_INDEPENDENT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndependentNamespace {
    /// NSFEAT: namespace features.
    pub nsfeat: u8,
    /// NMIC: bit 0, several controllers may share the namespace.
    pub nmic: u8,
    /// RESCAP: reservation capabilities.
    pub rescap: u8,
    /// NSATTR: bit 0, the namespace is write protected.
    pub nsattr: u8,
    /// NSTAT: bit 0, the namespace is ready.
    pub ready: bool,
}

impl IndependentNamespace {
    /// Parses the structure.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        Self {
            nsfeat: u8_at(bytes, 0),
            nmic: u8_at(bytes, 1),
            rescap: u8_at(bytes, 2),
            nsattr: u8_at(bytes, 8),
            ready: u8_at(bytes, 14) & 1 != 0,
        }
    }

    /// Writes the structure over `out`.
    pub fn write(&self, out: &mut [u8; BYTES]) {
        out.fill(0);
        put(out, 0, &[self.nsfeat, self.nmic, self.rescap]);
        put(out, 8, &[self.nsattr]);
        put(out, 14, &[u8::from(self.ready)]);
    }
}

/// Identify Controller of the NVM command set ([`cns::CONTROLLER_IO`]): size limits of commands.
/// Zero means that no limit is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdentifyControllerNvm {
    /// VSL: limit of Verify, as a base-2 logarithm in units of the minimum page size.
    pub vsl: u8,
    /// WZSL: limit of Write Zeroes, in the same unit.
    pub wzsl: u8,
    /// WUSL: limit of Write Uncorrectable, in the same unit.
    pub wusl: u8,
    /// DMRL: maximum ranges of a Dataset Management command.
    pub dmrl: u8,
    /// DMRSL: maximum blocks of one range.
    pub dmrsl: u32,
    /// DMSL: maximum blocks of all ranges together.
    pub dmsl: u64,
}

impl IdentifyControllerNvm {
    /// Parses the structure.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        Self {
            vsl: u8_at(bytes, 0),
            wzsl: u8_at(bytes, 1),
            wusl: u8_at(bytes, 2),
            dmrl: u8_at(bytes, 3),
            dmrsl: u32_at(bytes, 4),
            dmsl: u64_at(bytes, 8),
        }
    }

    /// Writes the structure over `out`.
    pub fn write(&self, out: &mut [u8; BYTES]) {
        out.fill(0);
        put(out, 0, &[self.vsl, self.wzsl, self.wusl, self.dmrl]);
        put(out, 4, &self.dmrsl.to_le_bytes());
        put(out, 8, &self.dmsl.to_le_bytes());
    }
}

/// Writes the supported combinations of I/O command sets over `out`: the NVM command set alone.
pub fn write_command_sets(out: &mut [u8; BYTES]) {
    out.fill(0);
    put(out, 0, &(1_u64 << CSI_NVM).to_le_bytes());
}

/// Parses the combinations of I/O command sets, each a bit mask. They end at the first empty one.
pub fn command_sets(bytes: &[u8; BYTES]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|sets| u64_at(sets, 0)).take_while(|sets| *sets != 0)
}

#[cfg(test)]
mod tests;
