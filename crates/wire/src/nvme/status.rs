//! Status field of a completion (base section 3.3.3.2.1).

use core::fmt;

/// Status code type, status code, More and Do Not Retry: the status field without the phase tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NvmeStatus(u16);

const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
/// Mask of status code and status code type.
const CODE: u16 = 0x7ff;

const GENERIC: u16 = 0x000;
const SPECIFIC: u16 = 0x100;
const MEDIA: u16 = 0x200;
const PATH: u16 = 0x300;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:ident, $code:literal, $text:literal;)*) => {
        impl NvmeStatus {
            $($(#[$doc])* pub const $name: Self = Self($kind | $code);)*

            /// Returns the meaning of the code; `None` if it is not in this list.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match self.code() {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const ALL: &[NvmeStatus] = &[$(NvmeStatus::$name),*];
    };
}

statuses! {
    /// Success.
    SUCCESS = GENERIC, 0x00, "success";
    /// The opcode is not supported on this queue.
    INVALID_OPCODE = GENERIC, 0x01, "invalid command opcode";
    /// A field is invalid or not supported.
    INVALID_FIELD = GENERIC, 0x02, "invalid field in command";
    /// A command with this identifier is outstanding.
    COMMAND_ID_CONFLICT = GENERIC, 0x03, "command ID conflict";
    /// Data or metadata could not be transferred.
    DATA_TRANSFER = GENERIC, 0x04, "data transfer error";
    /// The command was aborted because of a power loss.
    ABORTED_POWER_LOSS = GENERIC, 0x05, "commands aborted due to power loss";
    /// The controller failed.
    INTERNAL = GENERIC, 0x06, "internal error";
    /// The initiator aborted the command.
    ABORT_REQUESTED = GENERIC, 0x07, "command abort requested";
    /// The submission queue was deleted.
    ABORTED_QUEUE_DELETED = GENERIC, 0x08, "command aborted due to submission queue deletion";
    /// The other command of a fused operation failed.
    FAILED_FUSED = GENERIC, 0x09, "command aborted due to failed fused command";
    /// The other command of a fused operation is missing.
    MISSING_FUSED = GENERIC, 0x0a, "command aborted due to missing fused command";
    /// The namespace does not exist, or its format is invalid.
    INVALID_NAMESPACE = GENERIC, 0x0b, "invalid namespace or format";
    /// A command that must precede this one is missing.
    COMMAND_SEQUENCE = GENERIC, 0x0c, "command sequence error";
    /// An SGL descriptor is invalid.
    INVALID_SGL_SEGMENT = GENERIC, 0x0d, "invalid SGL segment descriptor";
    /// There are too many or too few SGL descriptors.
    INVALID_SGL_COUNT = GENERIC, 0x0e, "invalid number of SGL descriptors";
    /// The described data is too short or too long.
    SGL_LENGTH_INVALID = GENERIC, 0x0f, "data SGL length invalid";
    /// The described metadata is too short or too long.
    METADATA_SGL_LENGTH_INVALID = GENERIC, 0x10, "metadata SGL length invalid";
    /// The type of an SGL descriptor is not supported.
    SGL_TYPE_INVALID = GENERIC, 0x11, "SGL descriptor type invalid";
    /// The operation is not permitted.
    OPERATION_DENIED = GENERIC, 0x15, "operation denied";
    /// In-capsule data begins at a wrong offset.
    SGL_OFFSET_INVALID = GENERIC, 0x16, "SGL offset invalid";
    /// Initiators with the same host NQN have inconsistent host identifiers.
    HOST_ID_INCONSISTENT = GENERIC, 0x18, "host identifier inconsistent format";
    /// The keep alive timer expired.
    KEEP_ALIVE_EXPIRED = GENERIC, 0x19, "keep alive timer expired";
    /// The keep alive timeout is not supported.
    KEEP_ALIVE_INVALID = GENERIC, 0x1a, "keep alive timeout invalid";
    /// The namespace is write protected.
    WRITE_PROTECTED = GENERIC, 0x20, "namespace is write protected";
    /// The command was interrupted and may be retried.
    COMMAND_INTERRUPTED = GENERIC, 0x21, "command interrupted";
    /// The transport failed temporarily, for example by a data digest error.
    TRANSIENT_TRANSPORT = GENERIC, 0x22, "transient transport error";
    /// A block address is out of range.
    LBA_OUT_OF_RANGE = GENERIC, 0x80, "LBA out of range";
    /// The capacity of the namespace is exceeded.
    CAPACITY_EXCEEDED = GENERIC, 0x81, "capacity exceeded";
    /// The namespace is not ready yet.
    NAMESPACE_NOT_READY = GENERIC, 0x82, "namespace not ready";
    /// Another initiator holds a reservation.
    RESERVATION_CONFLICT = GENERIC, 0x83, "reservation conflict";

    /// The queue does not exist, or exists already.
    INVALID_QUEUE_ID = SPECIFIC, 0x01, "invalid queue identifier";
    /// The queue has too many entries, or none.
    INVALID_QUEUE_SIZE = SPECIFIC, 0x02, "invalid queue size";
    /// Too many Abort commands are outstanding.
    ABORT_LIMIT = SPECIFIC, 0x03, "abort command limit exceeded";
    /// Too many asynchronous event requests are outstanding.
    ASYNC_EVENT_LIMIT = SPECIFIC, 0x05, "asynchronous event request limit exceeded";
    /// The log page does not exist.
    INVALID_LOG_PAGE = SPECIFIC, 0x09, "invalid log page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = SPECIFIC, 0x0d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = SPECIFIC, 0x0e, "feature not changeable";
    /// The feature is not namespace specific.
    FEATURE_NOT_NAMESPACE = SPECIFIC, 0x0f, "feature not namespace specific";
    /// Connect: the format of the command or of its data is not supported. For an I/O command of
    /// the NVM command set: the attributes conflict.
    INCOMPATIBLE_FORMAT = SPECIFIC, 0x80, "connect incompatible format, or conflicting attributes";
    /// Connect: the controller is busy. For an I/O command of the NVM command set: the protection
    /// information is invalid.
    CONTROLLER_BUSY = SPECIFIC, 0x81, "connect controller busy, or invalid protection information";
    /// Connect: a parameter is invalid; the result has its offset. For an I/O command of the NVM
    /// command set: the range is read only.
    CONNECT_INVALID = SPECIFIC, 0x82, "connect invalid parameters, or read only range";
    /// Connect: the discovery information is out of date.
    RESTART_DISCOVERY = SPECIFIC, 0x83, "connect restart discovery";
    /// Connect: the initiator is not allowed to connect.
    INVALID_HOST = SPECIFIC, 0x84, "connect invalid host";
    /// Disconnect: not allowed on this queue.
    INVALID_QUEUE_TYPE = SPECIFIC, 0x85, "invalid queue type";
    /// Discovery: the log page must be read again from its beginning.
    DISCOVER_RESTART = SPECIFIC, 0x90, "discover restart";
    /// The initiator must authenticate.
    AUTHENTICATION_REQUIRED = SPECIFIC, 0x91, "authentication required";

    /// The data could not be written.
    WRITE_FAULT = MEDIA, 0x80, "write fault";
    /// The data could not be read.
    UNRECOVERED_READ = MEDIA, 0x81, "unrecovered read error";
    /// The compared data differs.
    COMPARE_FAILURE = MEDIA, 0x85, "compare failure";
    /// Access to the data is denied.
    ACCESS_DENIED = MEDIA, 0x86, "access denied";
    /// The block was deallocated or never written.
    UNWRITTEN = MEDIA, 0x87, "deallocated or unwritten logical block";

    /// The controller lost its path to the namespace.
    CONTROLLER_PATHING = PATH, 0x60, "controller pathing error";
    /// The initiator lost its path to the controller.
    HOST_PATHING = PATH, 0x70, "host pathing error";
    /// The initiator aborted the command on its own side.
    ABORTED_BY_HOST = PATH, 0x71, "command aborted by host";
}

impl NvmeStatus {
    /// Creates a status from status code type and status code.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// Creates a status from the status field of a completion; the phase tag is ignored.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// Returns the status field of a completion.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Returns the status code type: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor.
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Returns the status code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// Returns the status without More and Do Not Retry, comparable to the constants.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE)
    }

    /// Returns the status with Do Not Retry.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns whether Do Not Retry is set.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// Returns the status with More: the error log has details.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Returns whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE == 0
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text)?,
            None => write!(f, "status {:#x} of type {}", self.sc(), self.sct())?,
        }
        if self.is_final() { f.write_str(" (do not retry)") } else { Ok(()) }
    }
}

impl fmt::Debug for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn fields_are_what_the_specification_says() {
        assert_eq!(NvmeStatus::SUCCESS.to_field(), 0);
        assert_eq!(NvmeStatus::INVALID_FIELD.do_not_retry().to_field(), 0x8004);
        assert_eq!(NvmeStatus::CONNECT_INVALID.do_not_retry().to_field(), 0x8304);
        assert_eq!(NvmeStatus::COMPARE_FAILURE.to_field(), 0x050a);
        assert_eq!(NvmeStatus::LBA_OUT_OF_RANGE.with_more().to_field(), 0x4100);
        assert_eq!((NvmeStatus::HOST_PATHING.sct(), NvmeStatus::HOST_PATHING.sc()), (3, 0x70));
        assert_eq!(NvmeStatus::new(2, 0x81), NvmeStatus::UNRECOVERED_READ);
        assert_eq!(
            NvmeStatus::from_field(0x0001),
            NvmeStatus::SUCCESS,
            "the phase tag does not matter"
        );
        assert!(NvmeStatus::from_field(0x8001).is_success());
    }

    #[test]
    fn every_code_has_a_text_of_its_own() {
        for (at, status) in ALL.iter().enumerate() {
            assert_eq!(NvmeStatus::from_field(status.do_not_retry().to_field()).code(), *status);
            assert_eq!(status.do_not_retry().text(), status.text());
            let same = |other: &NvmeStatus| other == status || other.text() == status.text();
            assert_eq!(ALL.iter().position(same), Some(at), "{status}");
        }
        assert_eq!(NvmeStatus::new(7, 0x12).to_string(), "status 0x12 of type 7");
        let text = format!("{:?}", NvmeStatus::INVALID_HOST.do_not_retry());
        assert_eq!(text, "connect invalid host (do not retry)");
    }
}
