//! Link addresses as text: six bytes in hexadecimal, separated by colons, as Linux prints them.
//!
//! Used by options, messages and tests. Frames have the bytes.

use core::fmt;
use core::str::FromStr;

/// A link address that is printed and parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress(
    /// The bytes, in the order of the link.
    pub [u8; 6],
);

impl FromStr for LinkAddress {
    type Err = ();

    /// Parses six hexadecimal bytes of two digits, separated by colons.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let digits = |part: &&str| part.len() == 2 && !part.starts_with('+');
            let part = parts.next().filter(digits).ok_or(())?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn text_is_that_of_linux() {
        let address = LinkAddress([2, 0, 0xab, 0x10, 9, 0xff]);
        assert_eq!(address.to_string(), "02:00:ab:10:09:ff");
        assert_eq!("02:00:AB:10:09:ff".parse(), Ok(address));
        for wrong in [
            "",
            "2:0:ab:10:9:ff",
            "02:00:ab:10:09",
            "02:00:ab:10:09:ff:00",
            "02-00-ab-10-09-ff",
            "02:00:ab:10:09:fg",
            "02:00:ab:10:09:+f",
            "02:00:ab:10:09:ff ",
        ] {
            assert_eq!(wrong.parse::<LinkAddress>(), Err(()), "{wrong}");
        }
    }
}
