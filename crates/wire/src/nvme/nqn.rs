//! NVMe Qualified Names of initiators and subsystems (base section 4.5).

use core::fmt;

/// Maximum length of a name.
pub const NQN_BYTES_MAX: usize = 223;
/// Length of a zero-padded name field.
pub const NQN_FIELD_BYTES: usize = 256;
/// Name of every discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Prefix of names with a UUID.
const UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A valid name: 1 to [`NQN_BYTES_MAX`] bytes of UTF-8 without control characters, either
/// `nqn.yyyy-mm.reverse.domain:rest`, or `nqn.2014-08.org.nvmexpress:uuid:` and a UUID, or
/// [`DISCOVERY`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn {
    bytes: [u8; NQN_BYTES_MAX],
    len: usize,
}

impl Nqn {
    /// Parses a name; `None` if it is not valid.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; NQN_BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        is_valid(text).then_some(Self { bytes, len: text.len() })
    }

    /// Returns the name of the discovery subsystem.
    #[must_use]
    pub fn discovery() -> Self {
        let mut bytes = [0; NQN_BYTES_MAX];
        super::put(&mut bytes, 0, DISCOVERY.as_bytes());
        Self { bytes, len: DISCOVERY.len() }
    }

    /// Parses a zero-padded field; `None` if the name is not valid or has no terminator.
    #[must_use]
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Option<Self> {
        let len = field.iter().position(|byte| *byte == 0)?;
        let (name, _) = field.split_at_checked(len)?;
        Self::new(core::str::from_utf8(name).ok()?)
    }

    /// Returns the name as a zero-padded field.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        super::put(&mut field, 0, self.as_str().as_bytes());
        field
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("")
    }

    /// Returns whether this is the name of the discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Returns whether `text` is a valid name.
#[must_use]
pub fn is_valid(text: &str) -> bool {
    if text.len() > NQN_BYTES_MAX || text.chars().any(char::is_control) {
        return false;
    }
    match text.strip_prefix(UUID) {
        Some(uuid) => is_uuid(uuid),
        None => text == DISCOVERY || is_dated(text),
    }
}

/// Returns whether `text` is `nqn.yyyy-mm.reverse.domain:rest`; on that date the naming authority
/// owned the domain.
fn is_dated(text: &str) -> bool {
    let Some((date, rest)) =
        text.strip_prefix("nqn.").and_then(|text| text.split_at_checked("yyyy-mm".len()))
    else {
        return false;
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let dated = match date.split_once('-') {
        Some((year, month)) => {
            let month_known = digits(month) && matches!(month.parse(), Ok(1..=12_u8));
            year.len() == 4 && digits(year) && month_known
        }
        None => false,
    };
    let owned = rest.strip_prefix('.').and_then(|rest| rest.split_once(':'));
    dated && owned.is_some_and(|(domain, name)| is_domain(domain) && !name.is_empty())
}

fn is_domain(domain: &str) -> bool {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    domain.split('.').all(|label| !label.is_empty() && label.bytes().all(ordinary))
}

/// RFC 9562 section 4: 8, 4, 4, 4 and 12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups = text.split('-').map(str::len);
    groups.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn valid_names() {
        for text in [
            DISCOVERY,
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
            "nqn.2016-06.io.spdk:cnode1",
            "nqn.2026-11.example:namensraum-ä",
        ] {
            let name = Nqn::new(text).unwrap();
            assert_eq!((name.as_str(), name.is_discovery()), (text, text == DISCOVERY));
            assert_eq!(Nqn::from_field(&name.to_field()), Some(name));
        }
        assert_eq!(Nqn::new(DISCOVERY), Some(Nqn::discovery()));
    }

    #[test]
    fn invalid_names() {
        for text in [
            "",
            "nqn.",
            "nqn.2014-08.org.nvmexpress",
            "nqn.2014-08.org.nvmexpress:",
            "nqn.2014-13.com.example:a",
            "nqn.2014-00.com.example:a",
            "nqn.2014-+8.com.example:a",
            "nqn.14-08.com.example:a",
            "nqn.2014-08com.example:a",
            "nqn.2014-08.com..example:a",
            "nqn.2014-08.com.exam ple:a",
            "nqn.2014-08.com.example:a\n",
            "iqn.2014-08.com.example:a",
            "NQN.2014-08.com.example:a",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae7dec-11d0-a765-00a0c91e6bf6-",
            "nqn.2014-08.org.nvmexpress:uuid:g81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.ä014-08.com.example:a",
        ] {
            assert_eq!(Nqn::new(text), None, "{text:?}");
        }
        let long = format!("nqn.2014-08.com.example:{}", "a".repeat(199));
        assert_eq!(long.len(), NQN_BYTES_MAX);
        assert!(Nqn::new(&long).is_some() && Nqn::new(&format!("{long}a")).is_none());
    }

    #[test]
    fn fields_have_to_end() {
        let mut field = [b'a'; NQN_FIELD_BYTES];
        assert_eq!(Nqn::from_field(&field), None);
        field[..24].copy_from_slice(b"nqn.2014-08.com.example:");
        field[223..].fill(0);
        assert!(Nqn::from_field(&field).is_some());
        field[223] = b'a';
        assert_eq!(Nqn::from_field(&field), None, "224 bytes");
        field[30] = 0xff;
        field[40] = 0;
        assert_eq!(Nqn::from_field(&field), None, "no UTF-8");
    }

    proptest! {
        #[test]
        fn any_field_is_read(bytes in proptest::collection::vec(any::<u8>(), NQN_FIELD_BYTES)) {
            let _ = Nqn::from_field(&super::super::get(&bytes, 0));
        }

        #[test]
        fn any_text_is_judged(text in ".{0,240}") {
            let name = Nqn::new(&text).map(|name| String::from(name.as_str()));
            prop_assert_eq!(name, is_valid(&text).then_some(text));
        }
    }
}
