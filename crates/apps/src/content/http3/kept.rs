//! Memory for requests that clients leave unfinished: a server and a client in virtual time.

use std::sync::Arc;

use abi::Refusal;
use base::Duration;
use rustls::crypto::aws_lc_rs;

use super::world::{CLIENT, Disk, Node, SERVER};
use super::*;
use crate::content::ContentServer;

struct Pair {
    now: Instant,
    client: Node,
    server: Node,
    app: ContentServer,
    endpoint: Endpoint,
    handle: Handle,
    connected: bool,
}

impl Pair {
    fn new() -> Self {
        let (server_tls, tls) = testkit::tls13(vec!["server".to_owned()], b"h3");
        let provider = aws_lc_rs::default_provider();
        let quic = |number| {
            let epoch = io::clock::std_epoch();
            let usual = quic::Config::new(Arc::new(crypto::Provider), epoch, [number; 32]);
            quic::Config { idle_timeout: Duration::from_secs(1000), ..usual }
        };
        let [mut client, mut server] =
            [CLIENT, SERVER].map(|number| Node::new(number, Err(Refusal::Disabled), None));
        let http3 = quic::Config { tls: Some(server_tls), ..quic(SERVER) };
        let config = Config { http3: Some(http3), ..Config::default() };
        let app = ContentServer::new(config, &mut server.host).expect("ports are free");
        let config = quic::Config { port: 5000, ..quic(CLIENT) };
        let mut endpoint = Endpoint::new(config, &provider, &mut client.host).expect("an endpoint");
        let (now, to) = (Instant::from_millis(1), ([10, 77, 0, SERVER], 443).into());
        let handle = endpoint.connect(now, &mut client.host, to, "server", &tls).expect("begins");
        let mut pair = Self { now, client, server, app, endpoint, handle, connected: false };
        pair.run(|pair| pair.connected);
        pair
    }

    fn step(&mut self) -> bool {
        let now = self.now;
        while let Some(notice) = self.server.host.poll_notice() {
            self.app.handle_notice(now, &mut self.server.host, notice);
        }
        while let Some(notice) = self.client.host.poll_notice() {
            self.endpoint.handle_notice(now, &mut self.client.host, notice);
        }
        self.endpoint.flush(now, &mut self.client.host);
        while let Some(event) = self.endpoint.poll_event() {
            self.connected |= matches!(event, Event::Connected(_));
        }
        let down = self.server.run(now, &mut Disk::default());
        let up = self.client.run(now, &mut Disk::default());
        down.iter().for_each(|frame| self.client.receive(now, frame));
        up.iter().for_each(|frame| self.server.receive(now, frame));
        for node in [&mut self.client, &mut self.server] {
            while let Some((_, event)) = node.device.poll_event() {
                node.host.handle_event(now, event);
            }
        }
        !(down.is_empty() && up.is_empty())
    }

    fn run(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(100);
        loop {
            while self.step() {}
            if done(self) {
                return;
            }
            let times = [
                self.client.poll_timeout(self.now),
                self.server.poll_timeout(self.now),
                self.app.poll_timeout(),
                self.endpoint.poll_timeout(),
            ];
            let next = times.into_iter().flatten().min().expect("something is still to happen");
            self.now = next.max(self.now + Duration::from_micros(10));
            assert!(self.now <= end, "nothing came of it");
            self.client.host.handle_timeout(self.now);
            self.server.host.handle_timeout(self.now);
            self.endpoint.handle_timeout(self.now, &mut self.client.host);
            self.app.handle_timeout(self.now, &mut self.server.host);
        }
    }
}

#[test]
fn nothing_is_kept_of_a_request_that_was_given_up() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        let stream = pair.endpoint.open_stream(pair.handle, Dir::Bi).expect("allowed");
        pair.endpoint.write(pair.handle, stream, Bytes::from_static(&[1, 9, 0]));
    }
    let given_up = |pair: &Pair| {
        let mut count = 0;
        pair.app.visit(&mut |name, value| {
            count += if name == "http_timeouts_header" { value } else { 0 };
        });
        count == 3
    };
    pair.run(given_up);
    let http3 = pair.app.http3.as_ref().expect("it is served");
    let connection = http3.connections.values().next().expect("others go on");
    assert_eq!(connection.served, 3, "408");
    assert!(connection.requests.is_empty() && connection.answered.is_empty(), "{connection:?}");
}
