//! What must hold, checked from outside of the code under test.
//!
//! | checker | what it watches |
//! |---|---|
//! | `bytes` | every byte of every body, while it is read: in `http` and `client` |
//! | [`wire`] | frames that a device sends: well-formed, in the window, repeated as they were |
//! | [`echo`] | the host hears that a transmit left before its first frame is on the link |
//! | [`splice`] | what a proxy's device relays is what the other peer sent |
//! | [`plaintext`] | nothing to be read on the wire where TLS is spoken |
//! | [`progress`] | nothing stuck, nothing spinning; after the faults no error without a cause |
//! | [`counters`] | what the counters and gauges say at the end |
//! | [`performance`] | retransmissions, losses, round trips and memory, where they have bounds |
//! | [`alarms`] | counters that an operator alarms on are zero if everybody is honest |
//! | [`proxy`] | whether pairs were spliced that could be, and all have ended |
//! | [`quic`] | who protected QUIC's packets and read their files |
//! | [`storage`] | users of namespaces came to their ends, and the disk holds what it may |
//! | [`conserve`] | what was acknowledged is what was read |
//! | [`same`] | the same seed without offload: the same bytes |

pub(crate) mod alarms;
pub(crate) mod conserve;
pub(crate) mod counters;
pub(crate) mod echo;
pub(crate) mod performance;
pub(crate) mod plaintext;
pub(crate) mod progress;
pub(crate) mod proxy;
pub(crate) mod quic;
pub(crate) mod same;
pub(crate) mod splice;
pub(crate) mod storage;
pub(crate) mod wire;
