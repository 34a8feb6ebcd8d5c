//! Priorities of responses (RFC 9218): parses the Priority field and the value of PRIORITY_UPDATE.
//!
//! The value is a dictionary of structured fields (RFC 8941 section 4.2.2), of which the members
//! `u` and `i` are used. The crates for structured fields build a value for every member, including
//! decimals of arbitrary precision; here unknown members are skipped in place.

use quic::Priority;

/// Default urgency (RFC 9218 section 4.1).
const URGENCY: u8 = 3;

/// A bare item; its value is kept only for the types of `u` and `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BareItem {
    Integer(i64),
    Boolean(bool),
    Other,
}

/// Parses the value of a Priority field; `None` if it is no dictionary, in which case section 5
/// lets a server ignore it.
pub(crate) fn parse(value: &[u8]) -> Option<Priority> {
    let (mut urgency, mut incremental) = (URGENCY, false);
    let mut rest = value.trim_ascii();
    while !rest.is_empty() {
        let key = take_key(&mut rest)?;
        let item = match take(&mut rest, b'=') {
            true => take_member(&mut rest)?,
            false => BareItem::Boolean(true),
        };
        skip_parameters(&mut rest)?;
        match (key, item) {
            // Values out of range, or of another type, are ignored (section 4).
            (b"u", BareItem::Integer(value @ 0..=7)) => urgency = u8::try_from(value).ok()?,
            (b"i", BareItem::Boolean(value)) => incremental = value,
            _ => {}
        }
        skip_blanks(&mut rest);
        if rest.is_empty() {
            break;
        }
        if !take(&mut rest, b',') {
            return None;
        }
        skip_blanks(&mut rest);
        if rest.is_empty() {
            return None; // A trailing comma.
        }
    }
    Some(Priority::new(urgency, incremental))
}

fn take(rest: &mut &[u8], byte: u8) -> bool {
    match rest.split_first() {
        Some((&first, behind)) if first == byte => {
            *rest = behind;
            true
        }
        _ => false,
    }
}

fn take_while<'a>(rest: &mut &'a [u8], is: impl Fn(u8) -> bool) -> &'a [u8] {
    let len = rest.iter().position(|&b| !is(b)).unwrap_or(rest.len());
    let (taken, behind) = rest.split_at(len);
    *rest = behind;
    taken
}

fn skip_blanks(rest: &mut &[u8]) {
    take_while(rest, |b| matches!(b, b' ' | b'\t'));
}

/// Parses a key (RFC 8941 section 4.2.3.3).
fn take_key<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    rest.first().filter(|&&b| b.is_ascii_lowercase() || b == b'*')?;
    let in_key = |b: u8| {
        b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'.' | b'*')
    };
    Some(take_while(rest, in_key))
}

/// Parses an item, or an inner list (RFC 8941 section 4.2.1.2).
fn take_member(rest: &mut &[u8]) -> Option<BareItem> {
    if !take(rest, b'(') {
        return take_item(rest);
    }
    loop {
        skip_blanks(rest);
        if take(rest, b')') {
            return Some(BareItem::Other);
        }
        take_item(rest)?;
        skip_parameters(rest)?;
        if !matches!(rest.first(), Some(b' ' | b')')) {
            return None;
        }
    }
}

/// Parses a bare item (RFC 8941 section 4.2.3.1).
fn take_item(rest: &mut &[u8]) -> Option<BareItem> {
    match *rest.first()? {
        b'-' | b'0'..=b'9' => take_number(rest),
        b'?' => {
            let (bytes, behind) = rest.split_first_chunk::<2>()?;
            *rest = behind;
            match bytes[1] {
                b'0' => Some(BareItem::Boolean(false)),
                b'1' => Some(BareItem::Boolean(true)),
                _ => None,
            }
        }
        b'"' => {
            *rest = &rest[1..];
            loop {
                let (&byte, behind) = rest.split_first()?;
                *rest = behind;
                match byte {
                    b'"' => return Some(BareItem::Other),
                    b'\\' if !(take(rest, b'"') || take(rest, b'\\')) => return None,
                    b'\\' | b' '..=b'~' => {}
                    _ => return None,
                }
            }
        }
        b':' => {
            *rest = &rest[1..];
            let base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
            take_while(rest, base64);
            take(rest, b':').then_some(BareItem::Other)
        }
        first if first.is_ascii_alphabetic() || first == b'*' => {
            let in_token = |b: u8| super::message::is_token(b) || matches!(b, b':' | b'/');
            take_while(rest, in_token);
            Some(BareItem::Other)
        }
        _ => None,
    }
}

/// Parses an integer of at most 15 digits, or a decimal (RFC 8941 section 4.2.4).
fn take_number(rest: &mut &[u8]) -> Option<BareItem> {
    let sign = if take(rest, b'-') { -1 } else { 1 };
    let digits = take_while(rest, |b| b.is_ascii_digit());
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    if take(rest, b'.') {
        let fraction = take_while(rest, |b| b.is_ascii_digit());
        let fits = (1..=3).contains(&fraction.len()) && digits.len() <= 12;
        return fits.then_some(BareItem::Other);
    }
    let value = digits.iter().fold(0_i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    Some(BareItem::Integer(sign * value))
}

/// Skips parameters (RFC 8941 section 4.2.3.2).
fn skip_parameters(rest: &mut &[u8]) -> Option<()> {
    while take(rest, b';') {
        take_while(rest, |b| b == b' ');
        take_key(rest)?;
        if take(rest, b'=') {
            take_item(rest)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values() {
        let is = |value: &str, urgency, incremental| {
            let expected = Some(Priority::new(urgency, incremental));
            assert_eq!(parse(value.as_bytes()), expected, "{value}");
        };
        is("", 3, false);
        is("u=5", 5, false);
        is("i", 3, true);
        is("u=0, i", 0, true);
        is("i=?0,u=7", 7, false);
        is("u=1, u=2", 2, false);
        is("u=8, i=1", 3, false);
        is("u=-1, i=?1", 3, true);
        is("u=2.5", 3, false);
        is("u=1;x=\"a\\\"\";y, a=(1 \"b\";c=*d ?0), b=:aGk=:, c=t/o:k, i", 1, true);
        for value in ["U=1", "u=", "u=1,", "u=1 i", "=1", "a=(1", "a=\"b", "i=?2", "a=:b", ",", "é"]
        {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn total(value in "[ui=?01,; a(\"\\\\):.*-]{0,40}") {
            let _ = parse(value.as_bytes());
        }
    }
}
