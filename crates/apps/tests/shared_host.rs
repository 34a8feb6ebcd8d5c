//! Two applications on one host: a content server, whose QUIC endpoint makes the host read files,
//! and an NVMe/TCP target, which makes it write to a namespace. Each receives notices of its own
//! operations only.

mod machines;

use core::net::SocketAddr;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::Host;
use machines::{CLIENT, SERVER, content, machine};
use outboard_apps::content::{self, ContentServer};
use outboard_apps::nvme::initiator::{self, Initiator, NvmeRequest};
use outboard_apps::nvme::target::{self, NamespaceConfig, NvmeTarget, SubsystemConfig};
use quic::{Dir, QuicEndpoint, QuicEvent, StreamReadError};
use testkit::{NetworkNode, TwoMachineNetwork};
use wire::Endpoint as TcpEndpoint;
use wire::nvme::nqn::Nqn;

const BLOCK: usize = 512;
const NAMESPACE_BYTES: usize = 1 << 20;
const FILE_BYTES: usize = 2_000_000;
/// Number of writes of one page each, spread over the namespace.
const WRITES: u64 = 100;
const PAGE: usize = 4096;

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{name}")).expect("it is valid")
}

fn quic_config(number: u8) -> quic::QuicEndpointConfig {
    quic::QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [number; 32])
}

/// Returns the data of a write.
fn page(number: u64) -> Vec<u8> {
    vec![u8::try_from(number).expect("few writes") + 1; PAGE]
}

fn applications(host: &mut Host, tls: Arc<rustls::ServerConfig>) -> (NvmeTarget, ContentServer) {
    let http3 = quic::QuicEndpointConfig { tls: Some(tls), ..quic_config(SERVER) };
    let config = content::ContentServerConfig {
        http3: Some(http3),
        ..content::ContentServerConfig::default()
    };
    let server = ContentServer::new(config, host).expect("ports are free");
    let subsystem = SubsystemConfig {
        nqn: nqn("disks"),
        serial: String::from("1"),
        hosts: None,
        namespaces: vec![NamespaceConfig {
            block_shift: BLOCK.trailing_zeros().try_into().expect("small"),
            ..NamespaceConfig::new(&nqn("disks"), "disk")
        }],
    };
    let config = target::NvmeTargetConfig {
        subsystems: vec![subsystem],
        ..target::NvmeTargetConfig::default()
    };
    let target = NvmeTarget::new(config, Arc::new(Provider), host).expect("it is good");
    // The target comes first: it would take the endpoint's reads if they had no owner.
    (target, server)
}

#[test]
fn a_quic_endpoint_and_an_nvme_target_share_a_host() {
    let (server_tls, client_tls) = testkit::tls13(vec!["server".to_owned()], b"h3");
    let mut server = machine(SERVER, Err(Refusal::Disabled), None);
    server.disk.insert("big", content(FILE_BYTES), 1);
    server.disk.insert("disk", vec![0; NAMESPACE_BYTES], 2);
    server.disk.read_time = Duration::from_micros(100);
    let apps = applications(server.host(), server_tls);
    let mut client = machine(CLIENT, Err(Refusal::Disabled), None);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = quic::QuicEndpointConfig { port: 5000, ..quic_config(CLIENT) };
    let endpoint = QuicEndpoint::new(config, &provider, client.host()).expect("an endpoint");
    let config =
        initiator::InitiatorConfig::new(nqn("host"), [7; 16], nqn("disks"), Arc::new(Provider));
    let remote = TcpEndpoint { addr: [10, 77, 0, SERVER].into(), port: 4420 };
    let initiator = Initiator::new(config, remote);
    let mut net = TwoMachineNetwork::new(
        Instant::from_millis(1),
        (client, (endpoint, initiator)),
        (server, apps),
    );

    let TwoMachineNetwork {
        now, client: NetworkNode { machine, app: (endpoint, initiator) }, ..
    } = &mut net;
    let to: SocketAddr = ([10, 77, 0, SERVER], 443).into();
    let handle = endpoint.connect(*now, machine.host(), to, "server", &client_tls).expect("begun");
    initiator.connect(*now, machine.host());
    let up = net.run_until(Duration::from_secs(10), |net| {
        let (endpoint, initiator) = &mut net.client.app;
        let quic = matches!(endpoint.poll_event(), Some(QuicEvent::Connected(_)));
        quic || initiator.state() == initiator::InitiatorState::Live
    });
    assert!(up);
    let live = |net: &mut TwoMachineNetwork<(QuicEndpoint, Initiator), _>| {
        net.client.app.1.state() == initiator::InitiatorState::Live
    };
    assert!(net.run_until(Duration::from_secs(10), live));

    // HEADERS of GET /big, with indices of RFC 9204's static table.
    let section = [&[0, 0, 0xd1, 0xd7, 0x50, 1, b'a', 0x51, 4][..], b"/big"].concat();
    let request = [&[1, u8::try_from(section.len()).expect("short")], &section[..]].concat();
    let TwoMachineNetwork {
        now, client: NetworkNode { machine, app: (endpoint, initiator) }, ..
    } = &mut net;
    let stream = endpoint.open_stream(handle, Dir::Bi).expect("streams are allowed");
    endpoint.write(handle, stream, Bytes::from(request));
    endpoint.finish(handle, stream);
    for number in 0..WRITES {
        let lba = number * (PAGE / BLOCK) as u64;
        let write = NvmeRequest::Write { lba, data: page(number).into(), fua: false };
        initiator.submit(*now, machine.host(), (number, 1), write, None).expect("there is room");
    }
    let (mut received, mut done, mut ended) = (Vec::new(), 0, false);
    let finished = net.run_until(Duration::from_secs(60), |net| {
        let (endpoint, initiator) = &mut net.client.app;
        while endpoint.poll_event().is_some() {}
        while !ended {
            match endpoint.read(handle, stream, 1 << 20) {
                Ok(bytes) => received.extend_from_slice(&bytes),
                Err(StreamReadError::Blocked) => break,
                Err(end) => {
                    assert_eq!(end, StreamReadError::Finished);
                    ended = true;
                }
            }
        }
        while let Some(one) = initiator.poll_done() {
            assert!(one.result.is_ok(), "{one:?}");
            done += 1;
        }
        ended && done == WRITES
    });
    assert!(finished, "{} bytes, {done} writes", received.len());
    assert!(received.ends_with(&content(FILE_BYTES)));
    let stored = net.server.disk.file("disk").bytes();
    for number in 0..WRITES {
        let at = usize::try_from(number).expect("few") * PAGE;
        assert!(stored[at..at + PAGE] == page(number), "write {number}");
    }
    // Both applications used the host's disk.
    assert_eq!(net.server.count("nvmet_writes"), WRITES);
    assert!(net.server.count("quic_file_bytes_software") >= FILE_BYTES as u64);
}
