//! Rules of TCP that the host and the device both apply, each in one place: which segments count,
//! which are answered, and how a connection is carried by a SYN cookie.
//!
//! The host's TCP calls them for the connections that it has; the device calls them for those that
//! it sets up and tears down. A rule is a value and what a segment does to it. It sends nothing,
//! counts nothing and knows no table: its caller does.
//!
//! | module | rule |
//! |---|---|
//! | [`window`] | which segments touch the receive window: RFC 9293 section 3.10.7.4 |
//! | [`paws`] | TS.Recent, and segments that are older: RFC 7323 sections 4.3 and 5 |
//! | [`challenge`] | how often a segment that does not count is answered: RFC 5961 section 7 |
//! | [`time_wait`] | what a segment does in TIME-WAIT: RFC 9293, RFC 6191, RFC 1337 |
//! | [`cookie`] | SYN cookies: RFC 4987 section 3.6 |
//! | [`tuple`] | a tuple as bytes, and its hashes |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;

pub mod challenge;
pub mod cookie;
pub mod paws;
pub mod time_wait;
pub mod tuple;
pub mod window;
