//! Counters of a running instance, and the names that several tests use.
//!
//! Reading a counter that does not exist fails the test, so that a renamed counter is not mistaken
//! for one that did not move.

use std::collections::BTreeMap;

/// Device: file bytes sent, retransmissions included.
pub const FILE_BYTES: &str = "file_bytes";
/// Host: file bytes that the device was asked to send. Exists without a file engine too.
pub const FILE_OFFLOAD_BYTES: &str = "file_offload_bytes";
/// Device: reads that found the file changed.
pub const FILE_CHANGED: &str = "file_changed";
/// Host: connections that ended because of their file.
pub const FILE_ABORTS: &str = "file_aborts";
/// Host: file bytes that the host read itself instead of the device.
pub const FILE_FALLBACK_BYTES: &str = "file_fallback_bytes";
/// Host: retransmitted segments.
pub const TCP_RETRANS: &str = "tcp_retrans";

/// All counters of an instance at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Parses the output of `outboard stat --json`: an object of numbers, or of nested objects,
    /// whose names are joined by dots.
    ///
    /// # Errors
    /// Describes the fault of the text.
    pub fn parse(json: &str) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|e| format!("not JSON: {e}: {json}"))?;
        let mut all = BTreeMap::new();
        collect("", &value, &mut all)?;
        Ok(Self(all))
    }

    /// Adds the counters of another process.
    #[must_use]
    pub(crate) fn with(mut self, other: Self) -> Self {
        for (name, value) in other.0 {
            *self.0.entry(name).or_default() += value;
        }
        self
    }

    /// Returns the value of the counter `name`, or the sum if several parts count it
    /// (`nic.q0.NAME`, `nic.q1.NAME`).
    ///
    /// # Panics
    /// If the counter does not exist.
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

    /// Asserts that each of `names` is above zero.
    ///
    /// # Panics
    /// If one is zero.
    #[track_caller]
    pub fn expect_nonzero(&self, names: &[&str]) {
        for name in names {
            assert!(self.get(name) > 0, "{name} has not moved: {self:?}");
        }
    }

    /// Asserts that each of `names` is zero.
    ///
    /// # Panics
    /// If one is not zero.
    #[track_caller]
    pub fn expect_zero(&self, names: &[&str]) {
        for name in names {
            assert_eq!(self.get(name), 0, "{name} has moved: {self:?}");
        }
    }

    /// Asserts that there are counters, and that all are zero.
    ///
    /// # Panics
    /// If there are none, or one is not zero.
    #[track_caller]
    pub fn expect_all_zero(&self) {
        assert!(!self.0.is_empty(), "no counters");
        let moved: Vec<_> = self.0.iter().filter(|(_, value)| **value != 0).collect();
        assert!(moved.is_empty(), "{moved:?}");
    }

    /// Returns how much `name` moved since `before`.
    ///
    /// # Panics
    /// If the counter does not exist, or decreased.
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
