//! Counters that belong to the object that counts, and are collected by a visitor.
//!
//! [`counters!`](crate::counters!) defines a plain struct of `u64` fields. The owner adds to a
//! field; `outboard stat`, the metrics, and tests that list every counter they expect to move visit
//! the fields by name. There is no registry and no global state.
//!
//! A counter marked `alarm` is one on which an operator may set an alarm: honest peers leave it at
//! zero, whatever their traffic and whatever packets the network loses, repeats or reorders. It
//! moves if a peer breaks a protocol or forges packets, if something damages packets, if a disk,
//! the device or a backend fails, or if a configured limit is reached.

use alloc::string::String;
use alloc::vec::Vec;

/// Defines a struct of named `u64` counters with a visitor and the list of those that are alarms.
///
/// ```
/// outboard_base::counters! {
///     /// Counters of an engine.
///     pub struct EngineCounters {
///         /// Packets inspected.
///         packets,
///         /// Packets with a wrong checksum.
///         bad_checksums: alarm,
///     }
/// }
/// let mut c = EngineCounters::default();
/// c.packets += 1;
/// let mut seen = Vec::new();
/// c.visit(&mut |name, value| seen.push((name, value)));
/// assert_eq!(seen, [("packets", 1), ("bad_checksums", 0)]);
/// assert_eq!(EngineCounters::ALARMS, ["bad_checksums"]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$struct_doc:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$field_doc:meta])* $field:ident $(: $kind:ident)? ),* $(,)?
        }
    ) => {
        $(#[$struct_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $( $(#[$field_doc])* pub $field: u64, )*
        }

        impl $name {
            /// The names of the counters that honest traffic never moves.
            $vis const ALARMS: &'static [&'static str] =
                &[ $( $( $crate::alarm_name!($kind $field), )? )* ];

            /// Calls `f` with the name and value of each counter, in order of definition.
            $vis fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
                $( f(stringify!($field), self.$field); )*
            }

            /// Adds each counter of `other` to this one's: for totals over queues and workers.
            $vis fn add(&mut self, other: &Self) {
                $( self.$field += other.$field; )*
            }
        }
    };
}

/// Reports a state that cannot occur: adds one to a counter, and panics in builds with debug
/// assertions. For states that no input can cause; the caller abandons its work afterwards.
#[macro_export]
macro_rules! internal_error {
    ($counter:expr, $what:expr) => {{
        $counter += 1;
        debug_assert!(false, $what);
    }};
}

/// Returns the name of a counter that is marked as an alarm; does not compile with another mark.
#[doc(hidden)]
#[macro_export]
macro_rules! alarm_name {
    (alarm $field:ident) => {
        stringify!($field)
    };
}

/// Returns what a visitor is called with, in that order.
#[must_use]
pub fn collect_counters(
    visit: impl FnOnce(&mut dyn FnMut(&'static str, u64)),
) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    visit(&mut |name, value| all.push((name, value)));
    all
}

/// Returns the counters that increased between two visits, with their differences, for tests that
/// list every counter they expect to move.
#[must_use]
pub fn moved(before: &[(&'static str, u64)], after: &[(&'static str, u64)]) -> Vec<(String, u64)> {
    after
        .iter()
        .filter_map(|&(name, value)| {
            let old = before.iter().find(|b| b.0 == name).map_or(0, |b| b.1);
            (value > old).then(|| (String::from(name), value - old))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Counters for the test.
        struct Two { first, second: alarm }
    }

    #[test]
    fn visit_and_moved() {
        let mut c = Two::default();
        let walk = |c: &Two| {
            let mut v = Vec::new();
            c.visit(&mut |n, x| v.push((n, x)));
            v
        };
        let before = walk(&c);
        c.second += 3;
        assert_eq!(moved(&before, &walk(&c)), [(String::from("second"), 3)]);
        c.add(&Two { first: 1, second: 1 });
        assert_eq!((c.first, c.second), (1, 4));
        assert_eq!(Two::ALARMS, ["second"]);
    }
}
