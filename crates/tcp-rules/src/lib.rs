//! Rules of TCP that both the host and the device apply: which segments are acceptable, which are
//! answered, and SYN cookies.
//!
//! The host's TCP calls them for its connections; the device calls them for connections that it
//! sets up and tears down, and the Ethernet carrier for its sessions. A rule is a value with
//! methods for the effect of a segment on it. It sends nothing, counts nothing and knows no table:
//! these are the caller's work.
//!
//! | module | rule |
//! |---|---|
//! | [`window`] | which segments touch the receive window: RFC 9293 section 3.10.7.4 |
//! | [`paws`] | TS.Recent, and segments with older timestamps: RFC 7323 sections 4.3 and 5 |
//! | [`challenge`] | rate limit of answers to unacceptable segments: RFC 5961 section 7 |
//! | [`time_wait`] | segments in TIME-WAIT: RFC 9293, RFC 6191, RFC 1337 |
//! | [`black_hole`] | smaller segments for paths that drop large ones: RFC 4821 section 7.7 |
//! | [`round_trip`] | estimate of the round-trip time: RFC 6298 section 2 |
//! | [`cookie`] | SYN cookies: RFC 4987 section 3.6 |
//! | [`mod@tuple`] | a tuple as bytes, and its hashes |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;

pub mod black_hole;
pub mod challenge;
pub mod cookie;
pub mod paws;
pub mod round_trip;
pub mod time_wait;
pub mod tuple;
pub mod window;
