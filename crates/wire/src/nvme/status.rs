//! How a command went: the status field of a completion (base, section 3.3.3.2.1).

use core::fmt;

/// Status code type, status code, More and Do Not Retry: the status field without its phase tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
/// Status code and its type.
const CODE: u16 = 0x7ff;

const GENERIC: u16 = 0x000;
const SPECIFIC: u16 = 0x100;
const MEDIA: u16 = 0x200;
const PATH: u16 = 0x300;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:ident, $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($kind | $code);)*

            /// What the code means; none where it is not known here.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match self.code() {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const ALL: &[Status] = &[$(Status::$name),*];
    };
}

statuses! {
    /// Success.
    SUCCESS = GENERIC, 0x00, "success";
    /// The opcode is not supported on this queue.
    INVALID_OPCODE = GENERIC, 0x01, "invalid command opcode";
    /// A field is wrong, or not supported.
    INVALID_FIELD = GENERIC, 0x02, "invalid field in command";
    /// A command with this identifier is outstanding.
    COMMAND_ID_CONFLICT = GENERIC, 0x03, "command ID conflict";
    /// Data or metadata could not be transferred.
    DATA_TRANSFER = GENERIC, 0x04, "data transfer error";
    /// Aborted, power was lost.
    ABORTED_POWER_LOSS = GENERIC, 0x05, "commands aborted due to power loss";
    /// The controller failed.
    INTERNAL = GENERIC, 0x06, "internal error";
    /// The host asked for it.
    ABORT_REQUESTED = GENERIC, 0x07, "command abort requested";
    /// The queue was deleted.
    ABORTED_QUEUE_DELETED = GENERIC, 0x08, "command aborted due to submission queue deletion";
    /// The other half of a fused operation failed.
    FAILED_FUSED = GENERIC, 0x09, "command aborted due to failed fused command";
    /// The other half of a fused operation is missing.
    MISSING_FUSED = GENERIC, 0x0a, "command aborted due to missing fused command";
    /// No such namespace, or its format is invalid.
    INVALID_NAMESPACE = GENERIC, 0x0b, "invalid namespace or format";
    /// Not now: a command that has to precede it did not.
    COMMAND_SEQUENCE = GENERIC, 0x0c, "command sequence error";
    /// A descriptor is wrong.
    INVALID_SGL_SEGMENT = GENERIC, 0x0d, "invalid SGL segment descriptor";
    /// Too many descriptors, or too few.
    INVALID_SGL_COUNT = GENERIC, 0x0e, "invalid number of SGL descriptors";
    /// The data described is too short, or too long.
    SGL_LENGTH_INVALID = GENERIC, 0x0f, "data SGL length invalid";
    /// The same of metadata.
    METADATA_SGL_LENGTH_INVALID = GENERIC, 0x10, "metadata SGL length invalid";
    /// A descriptor of a type that is not supported here.
    SGL_TYPE_INVALID = GENERIC, 0x11, "SGL descriptor type invalid";
    /// Denied.
    OPERATION_DENIED = GENERIC, 0x15, "operation denied";
    /// In-capsule data does not begin where it has to.
    SGL_OFFSET_INVALID = GENERIC, 0x16, "SGL offset invalid";
    /// Hosts with the same name have other identifiers.
    HOST_ID_INCONSISTENT = GENERIC, 0x18, "host identifier inconsistent format";
    /// The host was silent for too long.
    KEEP_ALIVE_EXPIRED = GENERIC, 0x19, "keep alive timer expired";
    /// The time-out is not supported.
    KEEP_ALIVE_INVALID = GENERIC, 0x1a, "keep alive timeout invalid";
    /// The namespace may not be written.
    WRITE_PROTECTED = GENERIC, 0x20, "namespace is write protected";
    /// Interrupted: the host may try again.
    COMMAND_INTERRUPTED = GENERIC, 0x21, "command interrupted";
    /// The transport failed for now, as with a wrong data digest.
    TRANSIENT_TRANSPORT = GENERIC, 0x22, "transient transport error";
    /// A block behind the last.
    LBA_OUT_OF_RANGE = GENERIC, 0x80, "LBA out of range";
    /// No more room.
    CAPACITY_EXCEEDED = GENERIC, 0x81, "capacity exceeded";
    /// Not yet.
    NAMESPACE_NOT_READY = GENERIC, 0x82, "namespace not ready";
    /// Another host has reserved it.
    RESERVATION_CONFLICT = GENERIC, 0x83, "reservation conflict";

    /// No such queue, or it exists already.
    INVALID_QUEUE_ID = SPECIFIC, 0x01, "invalid queue identifier";
    /// Too many entries, or none.
    INVALID_QUEUE_SIZE = SPECIFIC, 0x02, "invalid queue size";
    /// Too many aborts.
    ABORT_LIMIT = SPECIFIC, 0x03, "abort command limit exceeded";
    /// Too many asynchronous event requests.
    ASYNC_EVENT_LIMIT = SPECIFIC, 0x05, "asynchronous event request limit exceeded";
    /// No such log page.
    INVALID_LOG_PAGE = SPECIFIC, 0x09, "invalid log page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = SPECIFIC, 0x0d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = SPECIFIC, 0x0e, "feature not changeable";
    /// The feature is not a namespace's.
    FEATURE_NOT_NAMESPACE = SPECIFIC, 0x0f, "feature not namespace specific";
    /// Connect: the format of the command, or of its data, is not known. On an I/O queue, for a
    /// command of the NVM command set: attributes that exclude each other.
    INCOMPATIBLE_FORMAT = SPECIFIC, 0x80, "connect incompatible format, or conflicting attributes";
    /// Connect: the controller cannot. For a command of the NVM command set: protection
    /// information is invalid.
    CONTROLLER_BUSY = SPECIFIC, 0x81, "connect controller busy, or invalid protection information";
    /// Connect: a parameter is wrong, and the result says which. For a command of the NVM command
    /// set: the range is read only.
    CONNECT_INVALID = SPECIFIC, 0x82, "connect invalid parameters, or read only range";
    /// Connect: what was discovered is out of date.
    RESTART_DISCOVERY = SPECIFIC, 0x83, "connect restart discovery";
    /// Connect: this host may not.
    INVALID_HOST = SPECIFIC, 0x84, "connect invalid host";
    /// Disconnect: not on this queue.
    INVALID_QUEUE_TYPE = SPECIFIC, 0x85, "invalid queue type";
    /// Discovery: begin again.
    DISCOVER_RESTART = SPECIFIC, 0x90, "discover restart";
    /// The host has to authenticate.
    AUTHENTICATION_REQUIRED = SPECIFIC, 0x91, "authentication required";

    /// Could not be written.
    WRITE_FAULT = MEDIA, 0x80, "write fault";
    /// Could not be read.
    UNRECOVERED_READ = MEDIA, 0x81, "unrecovered read error";
    /// What is stored is not what was sent.
    COMPARE_FAILURE = MEDIA, 0x85, "compare failure";
    /// Denied by the medium.
    ACCESS_DENIED = MEDIA, 0x86, "access denied";
    /// A block that was never written.
    UNWRITTEN = MEDIA, 0x87, "deallocated or unwritten logical block";

    /// The controller lost the way to the namespace.
    CONTROLLER_PATHING = PATH, 0x60, "controller pathing error";
    /// The host lost the way to the controller.
    HOST_PATHING = PATH, 0x70, "host pathing error";
    /// The host gave the command up.
    ABORTED_BY_HOST = PATH, 0x71, "command aborted by host";
}

impl Status {
    /// By code type and code.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// By the status field of a completion, whose phase tag does not matter.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// As the status field of a completion.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Status code type: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor.
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// Code and type alone: what the constants are.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE)
    }

    /// The same, with the advice that trying again is of no use.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Whether trying again is of no use.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// The same, with a hint that the error log says more.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether the command did what it says.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text)?,
            None => write!(f, "status {:#x} of type {}", self.sc(), self.sct())?,
        }
        if self.is_final() { f.write_str(" (do not retry)") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
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
        assert_eq!(Status::SUCCESS.to_field(), 0);
        assert_eq!(Status::INVALID_FIELD.do_not_retry().to_field(), 0x8004);
        assert_eq!(Status::CONNECT_INVALID.do_not_retry().to_field(), 0x8304);
        assert_eq!(Status::COMPARE_FAILURE.to_field(), 0x050a);
        assert_eq!(Status::LBA_OUT_OF_RANGE.with_more().to_field(), 0x4100);
        assert_eq!((Status::HOST_PATHING.sct(), Status::HOST_PATHING.sc()), (3, 0x70));
        assert_eq!(Status::new(2, 0x81), Status::UNRECOVERED_READ);
        assert_eq!(Status::from_field(0x0001), Status::SUCCESS, "the phase tag does not matter");
        assert!(Status::from_field(0x8001).is_success());
    }

    #[test]
    fn every_code_has_a_text_of_its_own() {
        for (at, status) in ALL.iter().enumerate() {
            assert_eq!(Status::from_field(status.do_not_retry().to_field()).code(), *status);
            assert_eq!(status.do_not_retry().text(), status.text());
            let same = |other: &Status| other == status || other.text() == status.text();
            assert_eq!(ALL.iter().position(same), Some(at), "{status}");
        }
        assert_eq!(Status::new(7, 0x12).to_string(), "status 0x12 of type 7");
        let text = format!("{:?}", Status::INVALID_HOST.do_not_retry());
        assert_eq!(text, "connect invalid host (do not retry)");
    }
}
