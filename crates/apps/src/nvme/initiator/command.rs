//! What a user asks for, and what comes of it.

use abi::aligned::AlignedBuf;
use bytes::Bytes;
use host::SocketError;
use host::nvme::Ended;
use wire::nvme::command::{
    Blocks, Command, DatasetManagement, Identify, Range, Transfer, admin, io,
};
use wire::nvme::status::Status;

use crate::nvme::Insecure;

/// Most blocks of a command: NLB has 16 bits.
const BLOCKS_MAX: u32 = 1 << 16;
/// The step in which an I/O queue is connected.
pub(super) const IO_QUEUE: &str = "connect of an I/O queue";
/// Most ranges of a dataset management command.
const RANGES_MAX: usize = 256;

/// A namespace that the controller has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier.
    pub nsid: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of one, as a power of two.
    pub shift: u8,
    /// Its globally unique identifier; zeros for none.
    pub nguid: [u8; 16],
    /// The short one; zeros for none.
    pub eui64: [u8; 8],
    /// Its UUID; zeros for none.
    pub uuid: [u8; 16],
    /// It may not be written.
    pub write_protected: bool,
}

impl Namespace {
    /// Whether it is the same as one of that number before: by what names it for ever, and where
    /// nothing does, by its size.
    pub(super) fn is_same(&self, before: &Self) -> bool {
        let ids = |of: &Self| (of.nguid, of.eui64, of.uuid);
        let named = ids(self) != ([0; 16], [0; 8], [0; 16]);
        ids(self) == ids(before)
            && self.shift == before.shift
            && (named || self.blocks == before.blocks)
    }
}

/// What is to be done. What gives data needs a buffer besides.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read blocks.
    Read {
        /// First block.
        lba: u64,
        /// Blocks, at least one.
        blocks: u32,
    },
    /// Write as many blocks as `data` has.
    Write {
        /// First block.
        lba: u64,
        /// The bytes: whole blocks.
        data: Bytes,
        /// They are on the medium before it ends.
        fua: bool,
    },
    /// Bring to the medium what was written and answered before.
    Flush,
    /// Make blocks read as zeros.
    WriteZeroes {
        /// First block.
        lba: u64,
        /// Blocks, at least one.
        blocks: u32,
        /// They need no room on the medium.
        deallocate: bool,
        /// They are zeros on the medium before it ends.
        fua: bool,
    },
    /// Compare blocks with `data`: [`Status::COMPARE_FAILURE`] where they differ.
    Compare {
        /// First block.
        lba: u64,
        /// The bytes: whole blocks.
        data: Bytes,
    },
    /// Blocks that are not needed any more: first block and count of each range.
    Deallocate {
        /// The ranges, 1 to 256.
        ranges: Vec<(u64, u32)>,
    },
    /// Identify, which gives a page; the namespace of the request counts where it matters.
    Identify(Identify),
    /// An admin command as it is, but for its identifier and its data pointer. It is never sent a
    /// second time by itself, unless all that it does is to give data.
    Admin {
        /// The command.
        command: Command,
        /// Its data.
        data: AdminData,
    },
}

/// Data of an admin command.
#[derive(Clone, Debug)]
pub enum AdminData {
    /// None.
    None,
    /// To the controller.
    Out(Bytes),
    /// From the controller: so many bytes.
    In(u32),
}

/// A request that has ended.
#[derive(Debug)]
pub struct Done {
    /// What [`super::Initiator::submit`] was told.
    pub token: u64,
    /// Dwords 0 and 1 of the completion, or what went wrong.
    pub result: Result<u64, Error>,
    /// The buffer of a request that has one: filled where nothing went wrong, else of no use.
    pub buffer: Option<AlignedBuf>,
}

/// Too many requests are open: the request and its buffer, for later.
#[derive(Debug)]
pub struct Busy(pub Request, pub Option<AlignedBuf>);

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The controller says so.
    #[error("the controller says: {0}")]
    Status(Status),
    /// Data came several times, and never with the digest that came with it.
    #[error("the data digest is wrong, {0} times in a row")]
    DataDigest(u8),
    /// There is no such namespace, or it is another by now.
    #[error("there is no namespace {0}, or it has changed")]
    NoNamespace(u32),
    /// Blocks behind the last, or none.
    #[error("no such blocks")]
    OutOfRange,
    /// Data that is not as long as the blocks, or more of it than the controller takes at once.
    #[error("bad length: no whole blocks, or more than the controller takes")]
    BadLength,
    /// The controller cannot do it.
    #[error("the controller does not support it")]
    NotSupported,
    /// It was not answered, and may have been done or not: it is not sent a second time, or was
    /// as often as [`super::Config::loss_retries`] has it.
    #[error("the connection was lost ({0}) and the command may have been done")]
    Lost(Loss),
    /// The controller is gone for longer than it may.
    #[error("the controller is lost: {0}")]
    ControllerLost(Loss),
    /// The controller did what it may not, again and again, when it was asked for this.
    #[error("the controller breaks the protocol: {0}")]
    Protocol(Loss),
    /// The user has closed the association.
    #[error("closed")]
    Closed,
}

/// Why an association was lost, or did not come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// A connection ended.
    #[error("{0}")]
    Connection(Ended),
    /// There was no secure channel, or no other.
    #[error("{0}")]
    Insecure(Insecure),
    /// There is no way to connect.
    #[error("{0}")]
    Connect(host::ConnectError),
    /// A command of the set-up failed.
    #[error("{step} failed: {status}")]
    Refused {
        /// Which.
        step: &'static str,
        /// How.
        status: Status,
    },
    /// The controller wants to authenticate the host, which cannot.
    #[error("the controller asks for in-band authentication, which is not supported")]
    Authentication,
    /// The controller lacks something that is needed.
    #[error("the controller is of no use: {0}")]
    Unusable(&'static str),
    /// Digests were asked for, and the controller gives none: of headers, or of data.
    #[error("the target gives no {0} digests; try without --{0}-digest")]
    NoDigests(&'static str),
    /// No answer in time.
    #[error("no answer in time: {0}")]
    Timeout(&'static str),
    /// The controller reports that it has failed.
    #[error("the controller reports a fatal error")]
    Fatal,
}

impl Loss {
    /// Whether to try again is of no use: the controller has said so, or can never be used.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            // A controller that does not know its I/O queues is another than it was a moment ago:
            // the target has started again.
            Self::Refused { step: IO_QUEUE, .. } => false,
            Self::Refused { status, .. } => status.is_final(),
            Self::Authentication | Self::Unusable(_) | Self::NoDigests(_) => true,
            _ => false,
        }
    }

    /// Whether the controller is told why, by a terminate request or an alert of TLS.
    pub(super) const fn is_said(&self) -> bool {
        match self {
            Self::Connection(Ended::Lost(why)) => {
                matches!(why, SocketError::Tls(_) | SocketError::TlsHandshake)
            }
            Self::Insecure(_) => true,
            _ => self.is_protocol(),
        }
    }

    /// Whether we ended the connection, for what the controller sent.
    pub(super) const fn is_protocol(&self) -> bool {
        matches!(self, Self::Connection(Ended::Terminated(_)))
    }
}

/// Blocks of a namespace that a request changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    nsid: u32,
    from: u64,
    to: u64,
}

impl Extent {
    pub(super) const fn overlaps(&self, other: &Self) -> bool {
        self.nsid == other.nsid && self.from < other.to && other.from < self.to
    }
}

/// What a controller takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most bytes of a command's data.
    pub(super) data_bytes_max: u64,
    /// Optional commands: [`wire::nvme::identify::oncs`].
    pub(super) oncs: u16,
}

/// Data of a command on its way.
#[derive(Debug)]
pub(super) enum Data {
    None,
    Out(Bytes),
    In { buffer: AlignedBuf, len: u32 },
}

impl Request {
    /// Whether it goes to an I/O queue.
    pub(super) const fn is_io(&self) -> bool {
        !matches!(self, Self::Identify(_) | Self::Admin { .. })
    }

    /// Whether it may be sent again when nobody knows whether it was done.
    ///
    /// What only looks may, and what leaves the same state however often it is done, provided that
    /// nothing else changed the blocks in between: see [`super::recovery`].
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Self::Admin { command, .. } => {
                let gives = [admin::IDENTIFY, admin::GET_LOG_PAGE, admin::GET_FEATURES];
                gives.contains(&command.opcode)
            }
            _ => true,
        }
    }

    /// The blocks that it changes. Of several ranges what they span.
    pub(super) fn change(&self, nsid: u32, shift: u8) -> Option<Extent> {
        let (from, blocks) = match self {
            Self::Write { lba, data, .. } => (*lba, data.len() as u64 >> shift),
            Self::WriteZeroes { lba, blocks, .. } => (*lba, u64::from(*blocks)),
            Self::Deallocate { ranges } => {
                let from = ranges.iter().map(|range| range.0).min()?;
                let end = |range: &(u64, u32)| range.0.saturating_add(u64::from(range.1));
                (from, ranges.iter().map(end).max()?.saturating_sub(from))
            }
            _ => return None,
        };
        Some(Extent { nsid, from, to: from.saturating_add(blocks) })
    }

    /// Bytes of data, and how many blocks from where it is about, if it is about blocks.
    fn shape(&self, shift: u8) -> (u64, Option<(u64, u64)>) {
        match self {
            Self::Read { lba, blocks } => {
                (u64::from(*blocks) << shift, Some((*lba, u64::from(*blocks))))
            }
            Self::Write { lba, data, .. } | Self::Compare { lba, data } => {
                (data.len() as u64, Some((*lba, data.len() as u64 >> shift)))
            }
            Self::WriteZeroes { lba, blocks, .. } => (0, Some((*lba, u64::from(*blocks)))),
            Self::Deallocate { ranges } => ((ranges.len() * Range::BYTES) as u64, None),
            Self::Identify(_) => (wire::nvme::identify::BYTES as u64, None),
            Self::Admin { data, .. } => (data.len(), None),
            Self::Flush => (0, None),
        }
    }

    /// Whether it can be sent at all.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(
        &self,
        namespace: &Namespace,
        limits: &Limits,
        buffer: Option<&AlignedBuf>,
    ) -> Result<(), Error> {
        use wire::nvme::identify::oncs;
        let optional = match self {
            Self::Compare { .. } => oncs::COMPARE,
            Self::WriteZeroes { .. } => oncs::WRITE_ZEROES,
            Self::Deallocate { .. } => oncs::DATASET_MANAGEMENT,
            _ => 0,
        };
        if limits.oncs & optional != optional {
            return Err(Error::NotSupported);
        }
        let (bytes, blocks) = self.shape(namespace.shift);
        let room = match self {
            Self::Read { .. } | Self::Identify(_) | Self::Admin { data: AdminData::In(_), .. } => {
                buffer.map_or(0, |buffer| buffer.len() as u64)
            }
            _ => bytes,
        };
        if matches!(self, Self::Admin { command, data } if !data.fits(command.opcode)) {
            return Err(Error::NotSupported);
        }
        if let Some((lba, count)) = blocks {
            if count == 0 || count > u64::from(BLOCKS_MAX) {
                return Err(Error::BadLength);
            }
            if lba.checked_add(count).is_none_or(|end| end > namespace.blocks) {
                return Err(Error::OutOfRange);
            }
            if bytes != 0 && bytes != count << namespace.shift {
                return Err(Error::BadLength);
            }
        }
        if let Self::Deallocate { ranges } = self {
            let end = |range: &(u64, u32)| range.0.checked_add(u64::from(range.1));
            if ranges.iter().any(|r| end(r).is_none_or(|end| end > namespace.blocks)) {
                return Err(Error::OutOfRange);
            }
            if ranges.is_empty() || ranges.len() > RANGES_MAX {
                return Err(Error::BadLength);
            }
        }
        // Without a limit of its own (WZSL) Linux has MDTS count for zeroes, too.
        let zeroes = matches!(self, Self::WriteZeroes { .. });
        let moved = if zeroes { blocks.map_or(0, |b| b.1 << namespace.shift) } else { bytes };
        if bytes > room || moved > limits.data_bytes_max || u32::try_from(bytes).is_err() {
            return Err(Error::BadLength);
        }
        Ok(())
    }

    /// The command, without its identifier. The buffer of a read goes along.
    pub(super) fn issue(
        &self,
        nsid: u32,
        shift: u8,
        buffer: Option<AlignedBuf>,
    ) -> (Command, Data) {
        let (bytes, blocks) = self.shape(shift);
        let len = u32::try_from(bytes).unwrap_or(0);
        let (lba, count) = blocks.unwrap_or_default();
        let blocks = Blocks::new(lba, u32::try_from(count).unwrap_or(0));
        let incoming = |buffer: Option<AlignedBuf>| match buffer {
            Some(buffer) if len > 0 => Data::In { buffer, len },
            _ => Data::None,
        };
        let command = |opcode| Command::new(opcode, 0, nsid);
        match self {
            Self::Read { .. } => (blocks.put(command(io::READ)), incoming(buffer)),
            Self::Write { data, fua, .. } => {
                let blocks = Blocks { fua: *fua, ..blocks };
                (blocks.put(command(io::WRITE)), Data::Out(data.clone()))
            }
            Self::Compare { data, .. } => {
                (blocks.put(command(io::COMPARE)), Data::Out(data.clone()))
            }
            Self::WriteZeroes { deallocate, fua, .. } => {
                let blocks = Blocks { fua: *fua, deallocate: *deallocate, ..blocks };
                (blocks.put(command(io::WRITE_ZEROES)), Data::None)
            }
            Self::Flush => (command(io::FLUSH), Data::None),
            Self::Deallocate { ranges } => {
                let mut data = Vec::with_capacity(ranges.len() * Range::BYTES);
                for &(slba, count) in ranges {
                    data.extend_from_slice(&Range { attributes: 0, count, slba }.to_bytes());
                }
                let ranges = u16::try_from(ranges.len()).unwrap_or(u16::MAX);
                let manage =
                    DatasetManagement { ranges, deallocate: true, integral: (false, false) };
                (manage.put(command(io::DATASET_MANAGEMENT)), Data::Out(data.into()))
            }
            Self::Identify(identify) => (identify.put(command(admin::IDENTIFY)), incoming(buffer)),
            Self::Admin { command, data } => {
                let data = match data {
                    AdminData::None => Data::None,
                    AdminData::Out(bytes) => Data::Out(bytes.clone()),
                    AdminData::In(_) => incoming(buffer),
                };
                (*command, data)
            }
        }
    }

    /// Bytes that count as read, or as written.
    pub(super) fn bytes(&self, shift: u8) -> (u64, u64) {
        match self {
            Self::Read { .. } => (self.shape(shift).0, 0),
            Self::Write { data, .. } => (0, data.len() as u64),
            _ => (0, 0),
        }
    }
}

impl AdminData {
    /// Bytes of it.
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Out(bytes) => bytes.len() as u64,
            Self::In(len) => u64::from(*len),
        }
    }

    /// Whether an opcode moves data this way.
    pub(super) fn fits(&self, opcode: u8) -> bool {
        match (self, Transfer::of(opcode)) {
            (Self::None, _) => true,
            (Self::Out(bytes), Transfer::ToController) => !bytes.is_empty(),
            (Self::In(len), Transfer::ToHost) => *len > 0,
            _ => false,
        }
    }
}
