//! Counters that belong to the object that counts, and are collected by a visitor.
//!
//! [`counters!`](crate::counters) defines a plain struct of `u64` fields. The owner adds to a
//! field; whoever wants to show the counters (`outboard stat`, metrics, tests that name every
//! counter they expect to move) walks them by name. There is no registry and no global state.

use alloc::string::String;
use alloc::vec::Vec;

/// Defines a struct of named `u64` counters with a visitor.
///
/// ```
/// base::counters! {
///     /// What an engine did.
///     pub struct EngineCounters {
///         /// Packets that it looked at.
///         packets,
///     }
/// }
/// let mut c = EngineCounters::default();
/// c.packets += 1;
/// let mut seen = Vec::new();
/// c.visit(&mut |name, value| seen.push((name, value)));
/// assert_eq!(seen, [("packets", 1)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$struct_doc:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$field_doc:meta])* $field:ident ),* $(,)?
        }
    ) => {
        $(#[$struct_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $( $(#[$field_doc])* pub $field: u64, )*
        }

        impl $name {
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

/// The counters that moved between two walks, as `name +n`, for tests that name every counter they
/// expect to move.
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
        /// For the test.
        struct Two { first, second }
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
    }
}
