//! `outboard nvme`: a target of NVMe over TCP, and what an initiator does with one.
//!
//! [`target`] serves files and block devices until a signal; [`ctl`] shows and changes what it
//! serves. The other verbs run an initiator ([`session`]): [`list`] shows what there is, [`copy`]
//! reads and writes ranges, [`fio`] checks and measures, [`export`] lets programs of this machine
//! in by NBD ([`nbd`]). All of them are stacks ([`stack::Stack`]). [`key`] makes pre-shared keys,
//! and shows what comes of one.

mod args;
mod copy;
mod ctl;
mod export;
mod fio;
mod key;
mod list;
mod nbd;
mod pipe;
mod progress;
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

pub(crate) use args::Nvme;

/// Bytes of data from which lending the device a buffer for it costs the host less than copying,
/// by `outboard-lab bench nvme`: at 8 KiB it costs some 400 cycles more, at 16 KiB as many less.
const DDP_IO_THRESHOLD: u32 = 12 << 10;

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
        Nvme::Ctl(args) => ctl::run(args),
        Nvme::Key(verb) => key::run(verb),
    }
}

/// What a device does of NVMe over TCP, and of TLS where that is spoken.
fn l5o_config(offload: Offloads, tls: bool) -> Option<L5oConfig> {
    let Offloads { nvme, .. } = offload;
    let (tls_tx, tls_rx) = (tls && offload.tls_tx, tls && offload.tls_rx);
    (nvme || tls_tx || tls_rx).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        nvme_tcp_tx: nvme,
        nvme_tcp_rx: nvme,
        ddp_io_threshold: DDP_IO_THRESHOLD,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    })
}

/// Bytes of a file or a block device, of which nothing was read yet.
fn length_of(input: &mut File) -> io::Result<u64> {
    let kind = input.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    let length = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    Ok(length)
}
