//! Requests of users, their results, and their translation to NVMe commands.

use abi::aligned::AlignedBuf;
use bytes::Bytes;
use host::SocketError;
use host::nvme::NvmeTransportEnd;
use wire::nvme::command::{
    DataDirection, DatasetManagement, DatasetRange, IdentifyCommand, NvmeBlockRange, NvmeCommand,
    admin, io,
};
use wire::nvme::status::NvmeStatus;

use crate::nvme::SecureChannelError;

/// Maximum number of blocks of a command: NLB has 16 bits.
const BLOCKS_MAX: u32 = 1 << 16;
/// Name of the set-up step that connects an I/O queue.
pub(super) const IO_QUEUE: &str = "connect of an I/O queue";
/// Maximum number of ranges of a dataset management command.
const RANGES_MAX: usize = 256;

/// A namespace of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitiatorNamespace {
    /// Namespace ID.
    pub nsid: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Block size in bytes, as a power of two.
    pub shift: u8,
    /// NGUID; zeros if it has none.
    pub nguid: [u8; 16],
    /// EUI-64; zeros if it has none.
    pub eui64: [u8; 8],
    /// UUID; zeros if it has none.
    pub uuid: [u8; 16],
    /// The controller does not accept writes.
    pub write_protected: bool,
}

impl InitiatorNamespace {
    /// Returns whether this is the same namespace as `before`, which had the same ID: by their
    /// permanent identifiers, or by size if they have none.
    pub(super) fn is_same(&self, before: &Self) -> bool {
        let ids = |of: &Self| (of.nguid, of.eui64, of.uuid);
        let named = ids(self) != ([0; 16], [0; 8], [0; 16]);
        ids(self) == ids(before)
            && self.shift == before.shift
            && (named || self.blocks == before.blocks)
    }
}

/// A request. Those that return data need a buffer in addition.
#[derive(Clone, Debug)]
pub enum NvmeRequest {
    /// Reads blocks.
    Read {
        /// First block.
        lba: u64,
        /// Number of blocks, at least one.
        blocks: u32,
    },
    /// Writes blocks.
    Write {
        /// First block.
        lba: u64,
        /// The data: whole blocks.
        data: Bytes,
        /// Force unit access: the data is on the medium when the request completes.
        fua: bool,
    },
    /// Writes all data of completed writes to the medium.
    Flush,
    /// Sets blocks to zeros.
    WriteZeroes {
        /// First block.
        lba: u64,
        /// Number of blocks, at least one.
        blocks: u32,
        /// The blocks may be deallocated.
        deallocate: bool,
        /// Force unit access: the zeros are on the medium when the request completes.
        fua: bool,
    },
    /// Compares blocks with `data`; fails with [`NvmeStatus::COMPARE_FAILURE`] if they differ.
    Compare {
        /// First block.
        lba: u64,
        /// The data: whole blocks.
        data: Bytes,
    },
    /// Deallocates blocks that are no longer needed.
    Deallocate {
        /// First block and number of blocks of each range; 1 to 256 ranges.
        ranges: Vec<(u64, u32)>,
    },
    /// Identify, which returns a page. Uses the request's namespace if its CNS needs one.
    Identify(IdentifyCommand),
    /// An admin command as it is, except for its identifier and data pointer. Resent after a lost
    /// association only if it is Identify, Get Log Page or Get Features.
    Admin {
        /// The command.
        command: NvmeCommand,
        /// Its data.
        data: AdminData,
    },
}

/// Data of an admin command.
#[derive(Clone, Debug)]
pub enum AdminData {
    /// No data.
    None,
    /// Data to the controller.
    Out(Bytes),
    /// Data from the controller, with this length in bytes.
    In(u32),
}

/// A completed request.
#[derive(Debug)]
pub struct NvmeRequestDone {
    /// Token passed to [`super::Initiator::submit`].
    pub token: u64,
    /// Dwords 0 and 1 of the completion, or the error.
    pub result: Result<u64, NvmeRequestError>,
    /// Buffer of the request; its contents are valid only on success.
    pub buffer: Option<AlignedBuf>,
}

/// Too many requests are open. Returns the request and its buffer.
#[derive(Debug)]
pub struct InitiatorBusy(pub NvmeRequest, pub Option<AlignedBuf>);

/// Error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeRequestError {
    /// The controller returned an error status.
    #[error("controller returned an error: {0}")]
    Status(NvmeStatus),
    /// Data arrived with a wrong digest in each of this many attempts.
    #[error("data digest error in {0} attempts")]
    DataDigest(u8),
    /// The data read contains a pattern that [`super::InitiatorConfig::pattern_rules`] deny.
    #[error("data contains a denied pattern")]
    DeniedPattern,
    /// The namespace does not exist, or was replaced by another.
    #[error("namespace {0} does not exist, or was replaced")]
    NoNamespace(u32),
    /// Blocks beyond the end of the namespace.
    #[error("range is beyond the end of the namespace")]
    OutOfRange,
    /// The length is not that of the blocks, or exceeds the controller's limit.
    #[error("length is not a multiple of the block size, or exceeds the controller's limit")]
    BadLength,
    /// The controller does not support the command.
    #[error("not supported by the controller")]
    NotSupported,
    /// The command was not answered and may have been executed. It must not be resent, or was
    /// resent [`super::InitiatorConfig::loss_retries`] times.
    #[error("connection lost ({0}), the command may have been executed")]
    Lost(AssociationLoss),
    /// The controller could not be reconnected in time.
    #[error("controller lost: {0}")]
    ControllerLost(AssociationLoss),
    /// The controller violated the protocol repeatedly in response to this command.
    #[error("protocol violation by the controller: {0}")]
    Protocol(AssociationLoss),
    /// The user closed the initiator.
    #[error("closed")]
    Closed,
}

/// Reason for which an association was lost or could not be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssociationLoss {
    /// A connection ended.
    #[error("{0}")]
    Connection(NvmeTransportEnd),
    /// The connection is not secure, or the controller requires that it is.
    #[error("{0}")]
    Insecure(SecureChannelError),
    /// The host could not open a connection.
    #[error("{0}")]
    Connect(host::ConnectError),
    /// A command of the set-up failed.
    #[error("{step} failed: {status}")]
    Refused {
        /// Step of the set-up.
        step: &'static str,
        /// Status of its completion.
        status: NvmeStatus,
    },
    /// The controller requires in-band authentication, which is not supported.
    #[error("the controller requires in-band authentication, which is not supported")]
    Authentication,
    /// The controller lacks a required feature.
    #[error("unusable controller: {0}")]
    Unusable(&'static str),
    /// The controller did not grant the requested digests, of headers or of data.
    #[error("the target does not support {0} digests; try without --{0}-digest")]
    NoDigests(&'static str),
    /// A step or command timed out.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal error")]
    Fatal,
}

impl AssociationLoss {
    /// Returns whether retrying is useless: the controller said so, or it can never be used.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            // An unknown controller ID on an I/O queue means that the target has been restarted
            // since the admin queue was connected.
            Self::Refused { step: IO_QUEUE, .. } => false,
            Self::Refused { status, .. } => status.is_final(),
            Self::Authentication | Self::Unusable(_) | Self::NoDigests(_) => true,
            _ => false,
        }
    }

    /// Returns whether a terminate request or a TLS alert tells the controller the reason.
    pub(super) const fn is_reported_to_peer(&self) -> bool {
        match self {
            Self::Connection(NvmeTransportEnd::Lost(why)) => {
                matches!(why, SocketError::Tls(_) | SocketError::TlsHandshake)
            }
            Self::Insecure(_) => true,
            _ => self.is_protocol(),
        }
    }

    /// Returns whether this end terminated the connection because of a protocol error.
    pub(super) const fn is_protocol(&self) -> bool {
        matches!(self, Self::Connection(NvmeTransportEnd::Terminated(_)))
    }
}

/// Blocks of a namespace that a request changes, `from` inclusive, `to` exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangedBlocks {
    nsid: u32,
    from: u64,
    to: u64,
}

impl ChangedBlocks {
    pub(super) const fn overlaps(&self, other: &Self) -> bool {
        self.nsid == other.nsid && self.from < other.to && other.from < self.to
    }
}

/// Limits of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControllerLimits {
    /// Largest data of a command in bytes.
    pub(super) data_bytes_max: u64,
    /// Supported optional commands: bits of [`wire::nvme::identify::oncs`].
    pub(super) oncs: u16,
}

/// Data of a command to be sent.
#[derive(Debug)]
pub(super) enum CommandData {
    None,
    Out(Bytes),
    In { buffer: AlignedBuf, len: u32 },
}

impl NvmeRequest {
    /// Returns whether the request is sent on an I/O queue.
    pub(super) const fn is_io(&self) -> bool {
        !matches!(self, Self::Identify(_) | Self::Admin { .. })
    }

    /// Returns whether the command may be sent again if it is unknown whether it was executed. That
    /// holds for commands that change nothing, and for those that leave the same state however
    /// often they are executed, provided that nothing else changes the blocks in between: see
    /// [`super::recovery`].
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Self::Admin { command, .. } => {
                let gives = [admin::IDENTIFY, admin::GET_LOG_PAGE, admin::GET_FEATURES];
                gives.contains(&command.opcode)
            }
            _ => true,
        }
    }

    /// Returns the blocks that the request changes; for several ranges, from the first to the last.
    pub(super) fn changed_blocks(&self, nsid: u32, shift: u8) -> Option<ChangedBlocks> {
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
        Some(ChangedBlocks { nsid, from, to: from.saturating_add(blocks) })
    }

    /// Returns the bytes of data, and the first block and number of blocks if it addresses blocks.
    fn shape(&self, shift: u8) -> (u64, Option<(u64, u64)>) {
        match self {
            Self::Read { lba, blocks } => {
                (u64::from(*blocks) << shift, Some((*lba, u64::from(*blocks))))
            }
            Self::Write { lba, data, .. } | Self::Compare { lba, data } => {
                (data.len() as u64, Some((*lba, data.len() as u64 >> shift)))
            }
            Self::WriteZeroes { lba, blocks, .. } => (0, Some((*lba, u64::from(*blocks)))),
            Self::Deallocate { ranges } => ((ranges.len() * DatasetRange::BYTES) as u64, None),
            Self::Identify(_) => (wire::nvme::identify::BYTES as u64, None),
            Self::Admin { data, .. } => (data.len(), None),
            Self::Flush => (0, None),
        }
    }

    /// Checks that the request is valid.
    ///
    /// # Errors
    /// The error with which the request fails.
    pub(super) fn check(
        &self,
        namespace: &InitiatorNamespace,
        limits: &ControllerLimits,
        buffer: Option<&AlignedBuf>,
    ) -> Result<(), NvmeRequestError> {
        use wire::nvme::identify::oncs;
        let optional = match self {
            Self::Compare { .. } => oncs::COMPARE,
            Self::WriteZeroes { .. } => oncs::WRITE_ZEROES,
            Self::Deallocate { .. } => oncs::DATASET_MANAGEMENT,
            _ => 0,
        };
        if limits.oncs & optional != optional {
            return Err(NvmeRequestError::NotSupported);
        }
        let (bytes, blocks) = self.shape(namespace.shift);
        let room = match self {
            Self::Read { .. } | Self::Identify(_) | Self::Admin { data: AdminData::In(_), .. } => {
                buffer.map_or(0, |buffer| buffer.len() as u64)
            }
            _ => bytes,
        };
        if matches!(self, Self::Admin { command, data } if !data.fits(command.opcode)) {
            return Err(NvmeRequestError::NotSupported);
        }
        if let Some((lba, count)) = blocks {
            if count == 0 || count > u64::from(BLOCKS_MAX) {
                return Err(NvmeRequestError::BadLength);
            }
            if lba.checked_add(count).is_none_or(|end| end > namespace.blocks) {
                return Err(NvmeRequestError::OutOfRange);
            }
            if bytes != 0 && bytes != count << namespace.shift {
                return Err(NvmeRequestError::BadLength);
            }
        }
        if let Self::Deallocate { ranges } = self {
            let end = |range: &(u64, u32)| range.0.checked_add(u64::from(range.1));
            if ranges.iter().any(|r| end(r).is_none_or(|end| end > namespace.blocks)) {
                return Err(NvmeRequestError::OutOfRange);
            }
            if ranges.is_empty() || ranges.len() > RANGES_MAX {
                return Err(NvmeRequestError::BadLength);
            }
        }
        // Like Linux, apply MDTS to Write Zeroes, which has no limit of its own without WZSL.
        let zeroes = matches!(self, Self::WriteZeroes { .. });
        let moved = if zeroes { blocks.map_or(0, |b| b.1 << namespace.shift) } else { bytes };
        if bytes > room || moved > limits.data_bytes_max || u32::try_from(bytes).is_err() {
            return Err(NvmeRequestError::BadLength);
        }
        Ok(())
    }

    /// Returns the command, without an identifier, and its data or the buffer for it.
    pub(super) fn to_command(
        &self,
        nsid: u32,
        shift: u8,
        buffer: Option<AlignedBuf>,
    ) -> (NvmeCommand, CommandData) {
        let (bytes, blocks) = self.shape(shift);
        let len = u32::try_from(bytes).unwrap_or(0);
        let (lba, count) = blocks.unwrap_or_default();
        let blocks = NvmeBlockRange::new(lba, u32::try_from(count).unwrap_or(0));
        let incoming = |buffer: Option<AlignedBuf>| match buffer {
            Some(buffer) if len > 0 => CommandData::In { buffer, len },
            _ => CommandData::None,
        };
        let command = |opcode| NvmeCommand::new(opcode, 0, nsid);
        match self {
            Self::Read { .. } => (blocks.encode_into(command(io::READ)), incoming(buffer)),
            Self::Write { data, fua, .. } => {
                let blocks = NvmeBlockRange { fua: *fua, ..blocks };
                (blocks.encode_into(command(io::WRITE)), CommandData::Out(data.clone()))
            }
            Self::Compare { data, .. } => {
                (blocks.encode_into(command(io::COMPARE)), CommandData::Out(data.clone()))
            }
            Self::WriteZeroes { deallocate, fua, .. } => {
                let blocks = NvmeBlockRange { fua: *fua, deallocate: *deallocate, ..blocks };
                (blocks.encode_into(command(io::WRITE_ZEROES)), CommandData::None)
            }
            Self::Flush => (command(io::FLUSH), CommandData::None),
            Self::Deallocate { ranges } => {
                let mut data = Vec::with_capacity(ranges.len() * DatasetRange::BYTES);
                for &(slba, count) in ranges {
                    data.extend_from_slice(&DatasetRange { attributes: 0, count, slba }.to_bytes());
                }
                let ranges = u16::try_from(ranges.len()).unwrap_or(u16::MAX);
                let manage =
                    DatasetManagement { ranges, deallocate: true, integral: (false, false) };
                (manage.encode_into(command(io::DATASET_MANAGEMENT)), CommandData::Out(data.into()))
            }
            Self::Identify(identify) => {
                (identify.encode_into(command(admin::IDENTIFY)), incoming(buffer))
            }
            Self::Admin { command, data } => {
                let data = match data {
                    AdminData::None => CommandData::None,
                    AdminData::Out(bytes) => CommandData::Out(bytes.clone()),
                    AdminData::In(_) => incoming(buffer),
                };
                (*command, data)
            }
        }
    }

    /// Returns the bytes to count as read and as written.
    pub(super) fn bytes(&self, shift: u8) -> (u64, u64) {
        match self {
            Self::Read { .. } => (self.shape(shift).0, 0),
            Self::Write { data, .. } => (0, data.len() as u64),
            _ => (0, 0),
        }
    }
}

impl AdminData {
    /// Returns the length in bytes.
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Out(bytes) => bytes.len() as u64,
            Self::In(len) => u64::from(*len),
        }
    }

    /// Returns whether an opcode transfers data in this direction.
    pub(super) fn fits(&self, opcode: u8) -> bool {
        match (self, DataDirection::of(opcode)) {
            (Self::None, _) => true,
            (Self::Out(bytes), DataDirection::ToController) => !bytes.is_empty(),
            (Self::In(len), DataDirection::ToHost) => *len > 0,
            _ => false,
        }
    }
}
