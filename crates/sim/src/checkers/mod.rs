//! What must hold, checked from outside of the code under test.
//!
//! | checker | what it watches |
//! |---|---|
//! | `bytes` | every byte of every body, while it is read: in [`crate::http`] and [`crate::client`] |
//! | [`wire`] | every frame that a device sends: well-formed, within the window, repeated as it was |
//! | [`progress`] | nothing stuck, nothing spinning; after the faults no error without a cause |
//! | [`counters`] | what the counters and gauges say at the end |
//! | [`conserve`] | what was acknowledged is what was read |
//! | [`same`] | the same seed without offload: the same bytes |

pub(crate) mod conserve;
pub(crate) mod counters;
pub(crate) mod progress;
pub(crate) mod same;
pub(crate) mod wire;
