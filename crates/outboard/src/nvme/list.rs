//! `outboard nvme discover` and `list`: the subsystems and namespaces of a target.

use serde_json::json;
use wire::nvme::log::{DiscoveryEntry, DiscoverySecurity, treq};

use super::args::{ConnectArgs, SubsystemArgs};
use super::session::{self, InitiatorSession};
use cli::Failure;

/// Runs `outboard nvme discover`.
///
/// # Errors
/// Fails if the log cannot be read.
pub(super) fn discover(args: &ConnectArgs) -> Result<(), Failure> {
    let entries = session::discover(args)?;
    if args.json {
        let all: Vec<_> = entries.iter().map(entry_json).collect();
        println!("{:#}", json!({ "records": all }));
        return Ok(());
    }
    println!("{:<12} {:<40} {:>6}  {:<15} subsystem", "type", "address", "port", "security");
    for entry in &entries {
        let (kind, addr, port, nqn) = entry_columns(entry);
        println!("{kind:<12} {addr:<40} {port:>6}  {:<15} {nqn}", security(entry));
    }
    Ok(())
}

/// Returns type, address, port and NQN of a record for display.
fn entry_columns(entry: &DiscoveryEntry) -> (String, String, String, String) {
    let kind = format!("{:?}", entry.kind).to_lowercase();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let addr = or_none(entry.addr.map(|addr| addr.to_string()));
    let port = or_none(entry.port.map(|port| port.to_string()));
    (kind, addr, port, or_none(entry.subnqn.map(|nqn| nqn.to_string())))
}

/// Returns the security of connections to the subsystem (NVMe over Fabrics section 5.4: TREQ and
/// TSAS).
fn security(entry: &DiscoveryEntry) -> String {
    match entry.security {
        DiscoverySecurity::None => "none".to_owned(),
        kind => format!("{kind:?} {}", required(entry)).to_lowercase(),
    }
}

/// Returns whether a secure channel is required (NVMe over Fabrics section 5.4: TREQ).
fn required(entry: &DiscoveryEntry) -> &'static str {
    match entry.treq & treq::SECURE {
        treq::SECURE_REQUIRED => "required",
        treq::SECURE_NOT_REQUIRED => "not required",
        _ => "not specified",
    }
}

fn entry_json(entry: &DiscoveryEntry) -> serde_json::Value {
    let (kind, ..) = entry_columns(entry);
    json!({
        "subtype": kind,
        "traddr": entry.addr.map(|addr| addr.to_string()),
        "trsvcid": entry.port,
        "subnqn": entry.subnqn.map(|nqn| nqn.to_string()),
        "portid": entry.port_id,
        "cntlid": entry.cntlid,
        "secure": format!("{:?}", entry.security).to_lowercase(),
        "treq": required(entry),
    })
}

/// Runs `outboard nvme list`.
///
/// # Errors
/// Fails if the target cannot be connected.
pub(super) fn list(args: &SubsystemArgs) -> Result<(), Failure> {
    let session = InitiatorSession::connect(args)?;
    if args.connect.json {
        let all = session.namespaces.iter().map(|n| {
            json!({
                "nsid": n.nsid,
                "blocks": n.blocks,
                "block_bytes": 1_u64 << n.shift,
                "bytes": n.blocks << n.shift,
                "write_protected": n.write_protected,
            })
        });
        let all: Vec<_> = all.collect();
        println!("{:#}", json!({ "subsystem": args.nqn.0.to_string(), "namespaces": all }));
    } else {
        println!("{:>9} {:>15} {:>11} {:>19}", "namespace", "blocks", "block size", "bytes");
        for n in &session.namespaces {
            let (block, bytes) = (1_u64 << n.shift, n.blocks << n.shift);
            println!("{:>9} {:>15} {block:>11} {bytes:>19}", n.nsid, n.blocks);
        }
    }
    session.end()
}
