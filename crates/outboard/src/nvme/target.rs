//! `outboard nvme target`: a stack ([`stack::Stack`]) with the NVMe/TCP target as its application.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use abi::Refusal;
use apps::nvme::handshake::NvmeTlsHandshakeFactory;
use apps::nvme::target::{NvmeTarget, NvmeTargetConfig, NvmeTargetGroup, SubsystemConfig};
use apps::pattern_rules::PatternRules;
use host::{Cidr, ListenConfig};
use io::disk::ChangeRule;
use io::xdp::ListenerPorts;
use nic::DeviceConfig;
use stack::{BACKLOG, ConfinedFiles, Offloads, QueueSetup, Signals, Stack, StackOptions, Switch};
use wire::Endpoint;

use super::args::TargetArgs;
use super::ctl::{
    self, NvmeCtlHandler, NvmeCtlRequest, NvmeTargetMessage, NvmeTargetService, OpenError,
};
use super::psk::PskStore;
use crate::alarms::is_alarm;
use crate::pattern_file::PatternFile;
use crate::tls::{self, ServerCertificates};
use cli::Failure;

/// Runs `outboard nvme target`.
///
/// # Errors
/// Fails if a file, address or thread is not available; the message says what to do.
pub(super) fn run(args: &TargetArgs) -> Result<(), Failure> {
    let mut args = args.clone();
    args.stack.confinement = args.confinement.begin(&confined_files(&args))?;
    let signals = Signals::take()?;
    let network = args.stack.wait_for_addrs(&signals)?;
    let args = &args;
    let certificates = args.tls && !args.has_psk();
    let certificates = certificates
        .then(|| ServerCertificates::load(&args.cert, &args.stack.addrs()))
        .transpose()?;
    let psks = PskStore::target(args)?;
    let tls = certificates.as_ref().map(tls::nvme_server).transpose()?;
    let psk = psks.clone().map(|psks| psks as Arc<dyn NvmeTlsHandshakeFactory>);
    let mut patterns = PatternFile::of_option(args.deny_patterns.as_ref());
    let pattern_rules = patterns.as_mut().map(PatternFile::read).transpose()?;
    let (config, mut locked) = config(args)?;
    let config = NvmeTargetConfig { pattern_rules, ..config };
    let group = NvmeTargetGroup::new(args.stack.queues.into());
    let service = |queue: QueueSetup<'_>| {
        let unix_epoch = queue.clock.unix_epoch();
        let member = Some(group.member(queue.index));
        let (tls, psk) = (tls.clone(), psk.clone());
        let config = NvmeTargetConfig { member, unix_epoch, tls, psk, ..config.clone() };
        let target = NvmeTarget::new(config, Arc::new(crypto::Provider), queue.host)
            .map_err(|e| Failure::Unavailable(format!("{e}; check --port and --namespace")))?;
        // The operator's orders are sent to the first queue, which has the locks on the files.
        Ok(NvmeTargetService::new(target, args.nqn.0, std::mem::take(&mut locked)))
    };
    let (nqn, block_bytes) = (args.nqn.0, args.block_size);
    let stack = Stack::builder()
        .options(StackOptions {
            listen_ports: ListenerPorts::new([args.port]),
            ..args.stack.clone()
        })
        .network(network)
        .configure(|_, device, host| configure(args, device, host))
        .root(Path::new("/"))
        // Namespaces may be anywhere. Only files named by the operator are opened.
        .disk(|| args.files.open_disk(Path::new("/"), ChangeRule::Content))
        .application(service)
        .messages(NvmeTargetService::handle_message)
        .orders(move |orders| {
            let ctl = NvmeCtlHandler { queues: orders, nqn, block_bytes };
            Box::new(move |order| ctl.answer(order))
        })
        .alarms(is_alarm)
        .start()?;
    let senders = stack.senders().to_vec();
    group.set_waker(move |queue| {
        senders.get(queue).into_iter().for_each(|sender| sender.send(NvmeTargetMessage::Mail));
    });
    announce(args, certificates.as_deref(), &mut std::io::stdout().lock());
    let psks = psks.filter(|_| args.tls_psk_file.is_some());
    let has_input = certificates.is_some() || psks.is_some() || patterns.is_some();
    let mut reload = |stack: &Stack<NvmeTargetMessage>| {
        patterns.iter_mut().for_each(|file| file.reload(|rules| set_pattern_rules(stack, &rules)));
        certificates.iter().for_each(|certificates| certificates.reload(&args.cert));
        psks.iter().for_each(|psks| psks.reload(args));
    };
    stack.run(signals, has_input.then_some(&mut reload))
}

/// Makes the target use other rules about patterns.
fn set_pattern_rules(stack: &Stack<NvmeTargetMessage>, rules: &Arc<PatternRules>) {
    for sender in stack.senders() {
        let (reply, _) = channel();
        let request = NvmeCtlRequest::SetPatternRules(Arc::clone(rules));
        sender.send(NvmeTargetMessage::Order(request, reply));
    }
}

/// Returns the configuration of the target, and its open files by path, which are locked while they
/// are open. All files are checked here, so that an invalid one is reported before anything is
/// started.
fn config(args: &TargetArgs) -> Result<(NvmeTargetConfig, BTreeMap<String, File>), Failure> {
    let (mut namespaces, mut locked) = (Vec::new(), BTreeMap::new());
    for path in &args.namespace {
        let (path, read_only) = read_only_of(path);
        let (config, file) = ctl::open_and_lock_namespace(
            &args.nqn.0,
            path,
            args.block_size.into(),
            read_only || args.read_only,
        )
        .map_err(|why| {
            let line = format!("--namespace {}: {why}", path.display());
            match why {
                OpenError::Served => Failure::Unavailable(line),
                OpenError::Io(_) | OpenError::NotUtf8 => Failure::NoInput(line),
            }
        })?;
        locked.insert(config.path.clone(), file);
        namespaces.push(config);
    }
    let hosts = (!args.allow.is_empty()).then(|| args.allow.iter().map(|nqn| nqn.0).collect());
    let subsystem =
        SubsystemConfig { nqn: args.nqn.0, serial: serial(args.nqn.0.as_str()), hosts, namespaces };
    let address = |cidr: &Cidr| Endpoint { addr: cidr.addr, port: args.port };
    let config = NvmeTargetConfig {
        listen: vec![ListenConfig { addr: None, port: args.port, backlog: BACKLOG }],
        addresses: args.stack.addrs().iter().map(address).collect(),
        subsystems: vec![subsystem],
        header_digest: args.header_digest == Switch::On,
        data_digest: args.data_digest == Switch::On,
        log: args.stack.access_log.is_some(),
        ..NvmeTargetConfig::default()
    };
    Ok((config, locked))
}

/// Returns the files that the options name. Namespaces that are added later have to be in the
/// directories of the first ones.
fn confined_files(args: &TargetArgs) -> ConfinedFiles {
    let mut files = args.stack.confined_files();
    // Namespaces are opened from there.
    files.allow_list("/");
    for namespace in &args.namespace {
        let (file, _) = read_only_of(namespace);
        if file.is_file() { files.allow_create(file) } else { files.allow_write(file) }
    }
    args.cert.add_files(&mut files);
    let read = args.deny_patterns.iter().chain(&args.tls_psk_file);
    read.for_each(|file| files.allow_read_replaced(file));
    files
}

/// Returns a namespace's file, and whether `:ro` follows its name.
fn read_only_of(path: &Path) -> (&Path, bool) {
    let bytes = path.as_os_str().as_bytes();
    match bytes.strip_suffix(b":ro") {
        // A file with exactly that name is meant.
        Some(_) if path.exists() => (path, false),
        Some(file) => (Path::new(OsStr::from_bytes(file)), true),
        None => (path, false),
    }
}

/// Opens a file, and checks that it can be a namespace: at least one block long, and writable
/// unless `read_only`.
pub(super) fn open_namespace_file(
    real: &Path,
    shown: &Path,
    block: u64,
    read_only: bool,
) -> std::io::Result<File> {
    let mut file = std::fs::OpenOptions::new().read(true).write(!read_only).open(real)?;
    let length = super::length_of(&mut file)?;
    if length < block {
        let line = format!(
            "size of {length} bytes is less than a block of {block} bytes; see --block-size"
        );
        return Err(std::io::Error::other(line));
    }
    if length % block != 0 {
        let (shown, rest) = (shown.display(), length % block);
        eprintln!(
            "outboard: --namespace {shown}: ignoring the last {rest} bytes, an incomplete block"
        );
    }
    Ok(file)
}

/// Returns a serial number for a subsystem. It is the same on each start, because hosts identify
/// controllers by it.
fn serial(nqn: &str) -> String {
    format!("OB{:016x}", base::fnv1a(nqn.as_bytes()))
}

/// Returns whether the device sends data from files, or why not: it can if it also encrypts them,
/// or if TLS is not used.
fn file_offload(args: &TargetArgs) -> Result<(), Refusal> {
    match args.stack.offload {
        Offloads { file: false, .. } => Err(Refusal::Disabled),
        Offloads { tls_tx: false, .. } if args.is_tls() => Err(Refusal::Encrypted),
        _ => Ok(()),
    }
}

/// Enables the engines that the device may use.
fn configure(args: &TargetArgs, device: &mut DeviceConfig, host: &mut host::HostConfig) {
    args.files.configure_host(host);
    host.file_offload = file_offload(args);
    let offload = Offloads { file: host.file_offload.is_ok(), ..args.stack.offload };
    device.file = offload.file.then(|| args.files.config());
    device.l5o = super::l5o_config(offload, args.is_tls(), args.deny_patterns.is_some());
}

/// Prints that the target is ready, and a command to try if one is enough.
fn announce(args: &TargetArgs, certificates: Option<&ServerCertificates>, out: &mut impl Write) {
    let over = if args.is_tls() { ", over TLS" } else { "" };
    for cidr in args.stack.addrs() {
        let at = std::net::SocketAddr::new(cidr.addr, args.port);
        let count = cli::counted(args.namespace.len(), "namespace");
        let _ = writeln!(out, "serving {} with {count} at {at}{over}", args.nqn.0);
    }
    // A created certificate is self-signed.
    if let Some(fingerprint) = certificates.and_then(ServerCertificates::self_signed_fingerprint) {
        let _ = writeln!(out, "self-signed certificate, SHA-256 fingerprint {fingerprint}");
    }
    // Linux's initiator needs no more than this, but TLS, and an initiator on another stack of
    // ours, need further options.
    if let (Some(first), false) = (args.stack.addrs().first(), args.is_tls()) {
        let (addr, port, nqn) = (first.addr, args.port, args.nqn.0);
        let _ = writeln!(out, "try: nvme connect -t tcp -a {addr} -s {port} -n {nqn}");
    }
    // A closed standard output is no reason to stop.
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::super::psk::tests::target;
    use super::*;

    #[test]
    fn what_is_to_be_tried_needs_nothing_else() {
        let said = |options: &[&str]| {
            let mut out = Vec::new();
            announce(&target(options), None, &mut out);
            String::from_utf8(out).unwrap()
        };
        let plain = said(&["--addr=10.0.0.2/24", "--nqn=nqn.2026-11.example:s"]);
        assert_eq!(
            plain,
            "serving nqn.2026-11.example:s with 1 namespace at 10.0.0.2:4420\n\
             try: nvme connect -t tcp -a 10.0.0.2 -s 4420 -n nqn.2026-11.example:s\n"
        );
        let tls = said(&["--addr=10.0.0.2/24", "--tls"]);
        assert!(tls.ends_with("at 10.0.0.2:4420, over TLS\n"), "{tls}");
    }
}
