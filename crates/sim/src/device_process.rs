//! The choice of machines whose device is a process of its own.

/// Machines whose device is a process of its own: operations and events cross as descriptors, and a
/// reset of the device is the death of that process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceProcess {
    /// Some, drawn for each seed.
    #[default]
    BySeed,
    /// None.
    Never,
    /// All that have one queue.
    Always,
    /// All that have one queue; the server's process dies after this many operations.
    DiesAfter(u64),
}
