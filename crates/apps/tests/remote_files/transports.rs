//! The same files over HTTP, HTTPS and HTTP/3, from storage with and without TLS, with all offloads
//! and with none: equal bytes, and the halves that the configuration names do the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use crypto::Provider;
use host::{Application, Host, ListenConfig, Notice, TlsClient, TlsServer};
use outboard_apps::content::ContentServerConfig;
use outboard_apps::get::{
    GetClient, GetClientConfig, GetError, GetEvent, GetOrder, GetTransport, GetUrl,
};
use outboard_apps::nvme::target::NvmeTarget;
use outboard_apps::remote::{RemoteContentServer, RemoteFilesConfig};
use quic::{QuicEndpoint, QuicEndpointConfig};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use testkit::{NetworkNode, TestCertificate, TlsOffer, TwoMachineNetwork};

use crate::image::{BIG, SMALL, big, image, small};
use crate::machines::{CLIENT, SERVER, machine};
use crate::{server, target, volume};

/// Name in all certificates.
const NAME: &str = "server";

/// A client for all transports, and an NVMe/TCP target.
struct GetAndTarget {
    client: GetClient,
    target: NvmeTarget,
    received: Vec<u8>,
    results: BTreeMap<u32, Result<(), GetError>>,
}

impl Application for GetAndTarget {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.target.handle_notice(now, host, notice);
        self.client.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.target.handle_timeout(now, host);
        self.client.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.target.poll_timeout(), self.client.poll_timeout()])
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = self.target.advance(now, host) | self.client.advance(now, host);
        while let Some(event) = self.client.poll_event() {
            worked = true;
            match event {
                GetEvent::Begun { .. } => {}
                GetEvent::Content { id, offset, bytes } => {
                    assert_eq!(offset, self.received.len() as u64, "one part, in order");
                    self.client.written(id, bytes.len());
                    self.received.extend_from_slice(&bytes);
                }
                GetEvent::Ended { id, result } => {
                    self.results.insert(id, result);
                }
            }
        }
        worked
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.target.visit(f);
        self.client.visit(f);
    }
}

fn quic_config(number: u8) -> QuicEndpointConfig {
    QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [number; 32])
}

/// TLS for both ends of TCP connections, and for those of QUIC.
struct TestTls {
    server: TlsServer,
    client: TlsClient,
    quic_server: Arc<rustls::ServerConfig>,
    quic_client: TlsClient,
}

impl TestTls {
    fn new() -> Self {
        let certificate = TestCertificate::new(vec![NAME.to_owned()]);
        let offer = TlsOffer::tls13();
        let (mut server, mut client) = (certificate.server(&offer), certificate.client(&offer));
        let (mut quic_server, mut quic_client) = (server.clone(), client.clone());
        (server.enable_secret_extraction, client.enable_secret_extraction) = (true, true);
        quic_server.alpn_protocols = vec![b"h3".to_vec()];
        quic_client.alpn_protocols = vec![b"h3".to_vec()];
        let of = |config| {
            let name = ServerName::try_from(NAME).expect("a name");
            TlsClient { config: Arc::new(config), name, crypto: Arc::new(Provider) }
        };
        Self {
            server: TlsServer { config: Arc::new(server), crypto: Arc::new(Provider) },
            client: of(client),
            quic_server: Arc::new(quic_server),
            quic_client: of(quic_client),
        }
    }
}

struct TransportRig {
    net: TwoMachineNetwork<GetAndTarget, RemoteContentServer>,
    tls: TestTls,
    next: u32,
}

impl TransportRig {
    fn new(offload: Result<(), Refusal>, tls_storage: bool) -> Self {
        let tls = TestTls::new();
        let (mut server, mut client) =
            (server(offload), machine(CLIENT, Err(Refusal::Disabled), None));
        client.disk.insert("disk", image(), 1);
        let now = Instant::from_millis(1);
        let volume = volume(tls_storage.then(|| tls.client.clone()));
        let files = RemoteFilesConfig { volumes: vec![volume], ..RemoteFilesConfig::default() };
        let listen = |port| ListenConfig { addr: None, port, backlog: 16 };
        let http3 =
            QuicEndpointConfig { tls: Some(Arc::clone(&tls.quic_server)), ..quic_config(SERVER) };
        let content = ContentServerConfig {
            listen: vec![listen(443)],
            tls: Some(tls.server.clone()),
            cleartext_listen: vec![listen(80)],
            http3: Some(http3),
            ..ContentServerConfig::default()
        };
        let site = RemoteContentServer::new(files, content, now, server.host());
        let site = site.expect("the ports are free");
        let quic = QuicEndpointConfig { port: 5000, streams_max: 0, ..quic_config(CLIENT) };
        let provider = aws_lc_rs::default_provider();
        let endpoint = QuicEndpoint::new(quic, &provider, client.host()).expect("an endpoint");
        let app = GetAndTarget {
            client: GetClient::new(GetClientConfig::default(), Some(endpoint)),
            target: target(tls_storage.then(|| tls.server.clone()), client.host()),
            received: Vec::new(),
            results: BTreeMap::new(),
        };
        let net = TwoMachineNetwork::new(now, (client, app), (server, site));
        Self { net, tls, next: 0 }
    }

    fn get(&mut self, transport: GetTransport, path: &str) -> Vec<u8> {
        let scheme = if matches!(transport, GetTransport::Plain) { "http" } else { "https" };
        let url: GetUrl = format!("{scheme}://{NAME}/{path}").parse().expect("a URL");
        let (id, addrs) = (self.next, vec![[10, 77, 0, SERVER].into()]);
        self.next += 1;
        let order = GetOrder { id, url, addrs, transport, parts_max: 1, resume: None };
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut self.net;
        app.client.start(*now, machine.host(), order);
        let limit = Duration::from_secs(100);
        let is_done = self.net.run_until(limit, |net| net.client.app.results.contains_key(&id));
        assert!(is_done, "no end: {:?}", self.net.server.counters());
        assert_eq!(self.net.client.app.results.remove(&id), Some(Ok(())), "{path}");
        core::mem::take(&mut self.net.client.app.received)
    }

    /// Asserts which half did the work.
    fn check(&self, is_offloaded: bool, tls_storage: bool) {
        let count = |name: &str| self.net.server.count(name);
        let by_device = [
            "nvme_rx_placed_bytes",
            "nvme_rx_digests_device",
            "tx_tls_encrypted_bytes",
            "quic_tx_sealed",
        ];
        for name in by_device {
            assert_eq!(count(name) > 0, is_offloaded, "{name}");
        }
        let decrypted = count("rx_tls_decrypted_bytes") > (BIG / 2) as u64;
        assert_eq!(decrypted, is_offloaded && tls_storage);
        assert_eq!(count("nvme_rx_digests_host") > 0, !is_offloaded);
        assert_eq!(count("internal_errors"), 0);
    }
}

#[test]
fn all_transports_carry_the_same_bytes_with_and_without_offload() {
    for tls_storage in [false, true] {
        for offload in [Ok(()), Err(Refusal::Disabled)] {
            let mut rig = TransportRig::new(offload, tls_storage);
            let (tls, quic) = (rig.tls.client.clone(), rig.tls.quic_client.clone());
            for transport in
                [GetTransport::Plain, GetTransport::Tls(tls), GetTransport::Http3(quic)]
            {
                for (path, expected) in [("big", big()), ("small", small())] {
                    let received = rig.get(transport.clone(), path);
                    assert_eq!(received.len(), expected.len(), "{path}");
                    assert!(received == expected, "{path}: other bytes");
                }
            }
            rig.check(offload.is_ok(), tls_storage);
            let fetched = rig.net.server.count("remote_fetched_bytes");
            assert_eq!(fetched, (BIG + SMALL) as u64, "once, for all transports");
        }
    }
}
