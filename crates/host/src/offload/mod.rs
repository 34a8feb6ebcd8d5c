//! Connections that the device has instead of the host.
//!
//! Called by [`crate::stream`] and [`crate::Host`]. What the device does for connections of the
//! host's is with the protocols: `tcp::transform`, `l5p`.

pub(crate) mod hand_over;
pub(crate) mod splice;
