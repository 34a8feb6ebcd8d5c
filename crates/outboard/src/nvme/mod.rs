//! `outboard nvme`: a target of NVMe over TCP, and what an initiator does with one.
//!
//! [`target`] serves files and block devices until a signal. The other verbs run an initiator
//! ([`session`]): [`list`] shows what there is, [`copy`] reads and writes ranges, [`fio`] checks
//! and measures, [`export`] lets programs of this machine in by NBD ([`nbd`]). The threads are
//! [`crate::stack`]'s.

mod args;
mod copy;
mod export;
mod fio;
mod list;
mod nbd;
mod pipe;
mod session;
mod target;

use crate::error::Failure;

pub(crate) use args::Nvme;

/// Runs `outboard nvme`.
///
/// # Errors
/// What could not be opened, bound or started, and what to do about it.
pub(crate) fn run(verb: &Nvme) -> Result<(), Failure> {
    match verb {
        Nvme::Target(args) => target::run(args),
        Nvme::Discover(args) => list::discover(args),
        Nvme::List(args) => list::list(args),
        Nvme::Read(args) => copy::read(args),
        Nvme::Write(args) => copy::write(args),
        Nvme::Fio(args) => fio::run(args),
        Nvme::Nbd(args) => export::run(args),
    }
}
