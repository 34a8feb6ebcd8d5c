//! Invariants, checked from outside of the code under test.
//!
//! | checker | what it checks |
//! |---|---|
//! | `bytes` | every byte of every body as it is read: in `http` and `client` |
//! | [`frames`] | frames of devices: well-formed, in the window, equal retransmissions |
//! | [`echo`] | the host learns that a transmit left before its first frame is on the link |
//! | [`splice`] | a proxy's device relays what the other peer sent |
//! | [`plaintext`] | no plaintext on the link if TLS is used |
//! | [`progress`] | nothing is stuck or spins; after the faults every error has a cause |
//! | [`counters`] | counters and gauges at the end |
//! | [`performance`] | retransmissions, losses, round trips and memory, if they have bounds |
//! | [`alarms`] | alarm counters are zero if all peers are honest |
//! | [`proxy`] | pairs that could be spliced were, and all have ended |
//! | [`path_mtu`] | probes of the path MTU, and black holes |
//! | [`patterns`] | what devices and hosts find in the bytes of clients |
//! | [`quic`] | which half protected QUIC packets and read their files |
//! | [`uploads`] | acknowledged uploads are there, and nothing else is left |
//! | [`remote`] | files on namespaces: nothing is corrupt or left open |
//! | [`storage`] | requests of users completed, and the disk holds a permitted state |
//! | [`conserve`] | the bytes acknowledged are the bytes read |
//! | [`differential`] | the same seed without offload: the same bytes |

pub(crate) mod alarms;
pub(crate) mod conserve;
pub(crate) mod counters;
pub(crate) mod differential;
pub(crate) mod echo;
pub(crate) mod frames;
pub(crate) mod path_mtu;
pub(crate) mod patterns;
pub(crate) mod performance;
pub(crate) mod plaintext;
pub(crate) mod progress;
pub(crate) mod proxy;
pub(crate) mod quic;
pub(crate) mod remote;
pub(crate) mod splice;
pub(crate) mod storage;
pub(crate) mod uploads;
