//! What Identify gives (base, section 5.17.2; nvm, section 4.1.5): 4096 bytes of each kind, of
//! which a structure here has the fields that a controller of files fills in and that hosts read.
//! All others are zero when written, and are not looked at when read.

mod controller;

use core::str;

pub use controller::{Controller, ControllerType, ctratt, lpa, oncs, sgls, vwc};

use super::{get, put, u8_at, u16_at, u32_at, u64_at};

/// Bytes of what Identify gives.
pub const BYTES: usize = 4096;

/// Kinds: Controller or Namespace Structure.
pub mod cns {
    /// Namespace, by the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// List of active namespaces above the one of the command.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Descriptors of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Namespace, by an I/O command set.
    pub const NAMESPACE_IO: u8 = 0x05;
    /// Controller, by an I/O command set.
    pub const CONTROLLER_IO: u8 = 0x06;
    /// List of active namespaces of an I/O command set.
    pub const ACTIVE_NAMESPACES_IO: u8 = 0x07;
    /// Namespace, by no I/O command set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// List of allocated namespaces.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// List of the subsystem's controllers.
    pub const CONTROLLERS: u8 = 0x13;
    /// Combinations of I/O command sets that are supported at one time.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// The NVM command set's identifier.
pub const CSI_NVM: u8 = 0;
/// Most namespaces in a list.
pub const NAMESPACES_MAX: usize = BYTES / 4;
/// Most controllers in a list.
pub const CONTROLLERS_MAX: usize = BYTES / 2 - 1;

/// Text that fills `N` bytes of ASCII, with spaces behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Up to `N` bytes of `text`; what is not printable ASCII becomes a question mark.
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

    /// All of them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Without the spaces behind it; empty where a peer sent no UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or("").trim_end_matches([' ', '\0'])
    }
}

/// Identify Namespace of the NVM command set. Of formats there are up to 16, as in 1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NSZE: blocks.
    pub nsze: u64,
    /// NCAP: blocks that may be allocated at one time.
    pub ncap: u64,
    /// NUSE: blocks that are allocated.
    pub nuse: u64,
    /// NSFEAT: bit 0 thin provisioning, bit 4 that the fields about optimal writes count.
    pub nsfeat: u8,
    /// FLBAS: the format, bits 3:0.
    pub flbas: u8,
    /// NMIC: bit 0 that several controllers may share it.
    pub nmic: u8,
    /// RESCAP: reservations.
    pub rescap: u8,
    /// DLFEAT: bits 2:0 what deallocated blocks read as (1: zeros), bit 3 that write zeroes may
    /// deallocate.
    pub dlfeat: u8,
    /// NAWUN, NAWUPF, NACWU: as of the controller.
    pub atomic: [u16; 3],
    /// NOIOB: the best size of commands in blocks; zero for none.
    pub noiob: u16,
    /// NPWG, NPWA, NPDG, NPDA, NOWS: preferred granularity and alignment of writes and of
    /// deallocation, and size of writes; each one less than the blocks.
    pub preferred: [u16; 5],
    /// NGUID; zeros for none.
    pub nguid: [u8; 16],
    /// EUI64; zeros for none.
    pub eui64: [u8; 8],
    /// NSATTR: bit 0 that it is write protected.
    pub nsattr: u8,
    /// NLBAF: one less than the formats that are supported.
    pub nlbaf: u8,
    /// LBAF.
    pub lbaf: [LbaFormat; 16],
}

/// How a block looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LbaFormat {
    /// MS: bytes of metadata.
    pub metadata: u16,
    /// LBADS: bytes of data, 2 to the power of this, 9 at least; zero for a format that is not.
    pub shift: u8,
    /// RP: relative performance; 0 is the best of 4.
    pub performance: u8,
}

impl Namespace {
    /// A namespace of these blocks, all of them allocated, with one format.
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

    /// The format in use; none where it is not among those supported.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        let index = usize::from(self.flbas & 0xf);
        let known = index <= usize::from(self.nlbaf);
        self.lbaf.get(index).copied().filter(|_| known)
    }

    /// Reads a structure.
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

/// A descriptor of a namespace (base, figure 277).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// Namespace globally unique identifier.
    Nguid([u8; 16]),
    /// RFC 9562 UUID.
    Uuid([u8; 16]),
    /// I/O command set.
    Csi(u8),
}

impl Descriptor {
    fn kind_and_value(&self) -> (u8, &[u8]) {
        match self {
            Self::Eui64(value) => (1, value),
            Self::Nguid(value) => (2, value),
            Self::Uuid(value) => (3, value),
            Self::Csi(value) => (4, core::slice::from_ref(value)),
        }
    }

    /// Writes a list over `out`; what has no room is left out.
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

    /// Reads a list; those of other kinds, or of wrong lengths, are left out.
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

/// Writes a list of namespaces over `out`: those of `ids` above `above`. They have to be ascending;
/// [`NAMESPACES_MAX`] have room.
pub fn write_namespaces(above: u32, ids: impl Iterator<Item = u32>, out: &mut [u8; BYTES]) {
    out.fill(0);
    for (to, id) in out.chunks_exact_mut(4).zip(ids.filter(|id| *id > above)) {
        put(to, 0, &id.to_le_bytes());
    }
}

/// Those of a list of namespaces; it ends with the first zero.
pub fn namespaces(bytes: &[u8; BYTES]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|id| u32_at(id, 0)).take_while(|id| *id != 0)
}

/// Writes a list of controllers over `out`: those of `ids` from `from` on. They have to be
/// ascending; [`CONTROLLERS_MAX`] have room.
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

/// Those of a list of controllers.
pub fn controllers(bytes: &[u8; BYTES]) -> impl Iterator<Item = u16> + '_ {
    let count = usize::from(u16_at(bytes, 0));
    bytes.chunks_exact(2).skip(1).take(count).map(|id| u16_at(id, 0))
}

/// Identify Namespace by no I/O command set ([`cns::NAMESPACE_INDEPENDENT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Independent {
    /// NSFEAT.
    pub nsfeat: u8,
    /// NMIC: bit 0 that several controllers may share it.
    pub nmic: u8,
    /// RESCAP.
    pub rescap: u8,
    /// NSATTR: bit 0 that it is write protected.
    pub nsattr: u8,
    /// NSTAT: bit 0 that it is ready.
    pub ready: bool,
}

impl Independent {
    /// Reads a structure.
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

/// Identify Controller of the NVM command set ([`cns::CONTROLLER_IO`]): limits of commands without
/// data. Zero is no limit that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ControllerNvm {
    /// VSL: of verify, 2 to the power of this in smallest pages.
    pub vsl: u8,
    /// WZSL: of write zeroes, the same way.
    pub wzsl: u8,
    /// WUSL: of write uncorrectable, the same way.
    pub wusl: u8,
    /// DMRL: ranges of a dataset management command.
    pub dmrl: u8,
    /// DMRSL: blocks of one of them.
    pub dmrsl: u32,
    /// DMSL: blocks of all of them.
    pub dmsl: u64,
}

impl ControllerNvm {
    /// Reads a structure.
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

/// Writes the combinations of I/O command sets over `out`: the NVM command set alone.
pub fn write_command_sets(out: &mut [u8; BYTES]) {
    out.fill(0);
    put(out, 0, &(1_u64 << CSI_NVM).to_le_bytes());
}

/// The combinations of I/O command sets, a bit for each of a combination; they end with an empty
/// one.
pub fn command_sets(bytes: &[u8; BYTES]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|sets| u64_at(sets, 0)).take_while(|sets| *sets != 0)
}

#[cfg(test)]
mod tests;
