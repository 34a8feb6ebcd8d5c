//! The counters of a running instance, and the names that several tests expect to find.
//!
//! A counter that is not there at all fails a test: a renamed counter
//! must not look like one that did not move.

use std::collections::BTreeMap;

/// The device: file bytes that left, retransmissions included.
pub const FILE_BYTES: &str = "file_bytes";
/// The host: file bytes that the device was asked to send; there also where it has no file engine.
pub const FILE_OFFLOAD_BYTES: &str = "file_offload_bytes";
/// The device: reads that found the file changed.
pub const FILE_CHANGED: &str = "file_changed";
/// The host: connections that ended because of their file.
pub const FILE_ABORTS: &str = "file_aborts";
/// The host: file bytes that it read itself because the device did not.
pub const FILE_FALLBACK_BYTES: &str = "file_fallback_bytes";
/// The host: retransmits handed to the device.
pub const TCP_RETRANS: &str = "tcp_retrans";

/// All counters of an instance at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads what `outboard stat --json` prints: one object, of numbers or of objects of numbers,
    /// whose names are then joined by dots.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(json: &str) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|e| format!("not JSON: {e}: {json}"))?;
        let mut all = BTreeMap::new();
        collect("", &value, &mut all)?;
        Ok(Self(all))
    }

    /// The value of the counter `name`; where several parts count it (`nic.q0.NAME`,
    /// `nic.q1.NAME`), the sum.
    ///
    /// # Panics
    /// Where nobody counts it.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        let is_it = |full: &str| {
            full.strip_suffix(name).is_some_and(|head| head.is_empty() || head.ends_with('.'))
        };
        let values: Vec<u64> =
            self.0.iter().filter(|(full, _)| is_it(full)).map(|(_, &value)| value).collect();
        assert!(!values.is_empty(), "no counter {name}; there are: {:?}", self.0.keys());
        values.iter().sum()
    }

    /// Each of `names` is above zero.
    ///
    /// # Panics
    /// Where one is not.
    #[track_caller]
    pub fn expect_moved(&self, names: &[&str]) {
        for name in names {
            assert!(self.get(name) > 0, "{name} has not moved: {self:?}");
        }
    }

    /// Each of `names` is zero.
    ///
    /// # Panics
    /// Where one is not.
    #[track_caller]
    pub fn expect_still(&self, names: &[&str]) {
        for name in names {
            assert_eq!(self.get(name), 0, "{name} has moved: {self:?}");
        }
    }

    /// There are counters, and all are zero.
    ///
    /// # Panics
    /// Where one is not.
    #[track_caller]
    pub fn expect_moved_none(&self) {
        assert!(!self.0.is_empty(), "no counters");
        let moved: Vec<_> = self.0.iter().filter(|(_, value)| **value != 0).collect();
        assert!(moved.is_empty(), "{moved:?}");
    }

    /// How far `name` moved since `before`.
    ///
    /// # Panics
    /// Where nobody counts it, or it went back.
    #[must_use]
    pub fn moved(&self, before: &Self, name: &str) -> u64 {
        let (old, new) = (before.get(name), self.get(name));
        new.checked_sub(old).unwrap_or_else(|| panic!("{name} went back from {old} to {new}"))
    }
}

fn collect(
    prefix: &str,
    value: &serde_json::Value,
    all: &mut BTreeMap<String, u64>,
) -> Result<(), String> {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let full =
                    if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                collect(&full, value, all)?;
            }
            Ok(())
        }
        serde_json::Value::Number(number) => {
            let number = number.as_u64().ok_or_else(|| format!("{prefix} is {number}"))?;
            all.insert(prefix.to_owned(), number);
            Ok(())
        }
        other => Err(format!("{prefix:?} is not a number or an object: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_and_nested_counters_are_found_by_name() {
        let flat = Counters::parse(r#"{"nic.q0.packets": 1, "nic.q1.packets": 2}"#).unwrap();
        assert_eq!(flat.get("packets"), 3);
        let nested = Counters::parse(r#"{"nic": {"packets": 4, "rx_packets": 9}}"#).unwrap();
        assert_eq!(nested.get("packets"), 4);
        assert_eq!(nested.moved(&flat, "packets"), 1);
        assert!(Counters::parse(r#"{"a": -1}"#).is_err());
        assert!(Counters::parse("[]").is_err());
    }

    #[test]
    #[should_panic(expected = "no counter a")]
    fn counter_that_is_not_there_is_an_error() {
        let _ = Counters::default().get("a");
    }
}
