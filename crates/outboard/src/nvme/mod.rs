//! `outboard nvme`: an NVMe/TCP target, and commands of an initiator.
//!
//! [`target`] serves files and block devices until a signal; [`ctl`] shows and changes what a
//! running target serves. The other subcommands run an initiator ([`session`]): [`list`] shows
//! subsystems and namespaces, [`copy`] reads and writes ranges, [`fio`] verifies and measures,
//! [`export`] serves a namespace to programs of this machine by NBD ([`nbd`]). All of these are
//! stacks ([`stack::Stack`]). [`key`] generates pre-shared keys and shows their derived secrets.

mod args;
mod copy;
mod ctl;
mod export;
mod fio;
mod handle;
mod key;
mod list;
mod nbd;
mod pipe;
mod psk;
mod security;
mod session;
mod target;

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;

use nic::L5oConfig;
use stack::Offloads;

use cli::Failure;

pub(crate) use args::{NvmeSubcommand, SubsystemArgs};
pub(crate) use session::initiator_config;

/// Bytes of data from which registering a buffer with the device costs the host less than copying,
/// measured by `outboard-lab bench nvme`: 400 cycles more at 8 KiB, 400 cycles less at 16 KiB.
const DDP_IO_THRESHOLD: u32 = 12 << 10;

/// Runs `outboard nvme`.
///
/// # Errors
/// Fails if a file, address, thread or target is not available; the message says what to do.
pub(crate) fn run(verb: &NvmeSubcommand) -> Result<(), Failure> {
    match verb {
        NvmeSubcommand::Target(args) => target::run(args),
        NvmeSubcommand::Discover(args) => list::discover(args),
        NvmeSubcommand::List(args) => list::list(args),
        NvmeSubcommand::Read(args) => copy::read(args),
        NvmeSubcommand::Write(args) => copy::write(args),
        NvmeSubcommand::Fio(args) => fio::run(args),
        NvmeSubcommand::Nbd(args) => export::run(args),
        NvmeSubcommand::Ctl(args) => ctl::run(args),
        NvmeSubcommand::Key(verb) => key::run(verb),
    }
}

/// Returns the device's offloads for NVMe/TCP, for TLS if it is used, and for inspection if there
/// are rules (`inspect`).
pub(crate) fn l5o_config(offload: Offloads, tls: bool, inspect: bool) -> Option<L5oConfig> {
    let Offloads { nvme, .. } = offload;
    // The device inspects the data of commands, which it finds with the offload of NVMe/TCP.
    let inspect = inspect && offload.inspect && nvme;
    let (tls_tx, tls_rx) = (tls && offload.tls_tx, tls && offload.tls_rx);
    (nvme || tls_tx || tls_rx).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        nvme_tcp_tx: nvme,
        nvme_tcp_rx: nvme,
        inspect,
        ddp_io_threshold: DDP_IO_THRESHOLD,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    })
}

/// Returns the size in bytes of a file or a block device, and seeks to its start.
fn length_of(input: &mut File) -> io::Result<u64> {
    let kind = input.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("not a regular file or block device"));
    }
    let length = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    Ok(length)
}
