//! The stack of `outboard get`: a [`GetClient`] for each queue, which sends its events to the main
//! thread. Downloads are spread over the queues.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use abi::quic::QuicSteering;
use apps::get::{GetClient, GetClientConfig, GetEvent, GetOrder};
use base::{Duration, Instant};
use host::{Application, Host, Notice};
use io::clock;
use nic::{L5oConfig, QuicConfig};
use stack::{MessageSender, Network, Offloads, QueueSetup, Stack};

use super::args::GetArgs;
use crate::alarms::is_alarm;
use crate::tls;
use cli::Failure;

/// Bytes of a TCP connection, and of a stream and a connection of QUIC, that may be received and
/// not read: what a fast link carries in a long round trip.
const TCP_WINDOW: u32 = 4 << 20;
const QUIC_WINDOWS: [u32; 2] = [4 << 20, 6 << 20];

/// An order of the main thread.
pub(super) enum GetMessage {
    Start(Box<GetOrder>),
    /// Bytes of content of a download were written.
    Written(u32, usize),
    Cancel(u32),
    /// Cancels all downloads and sends no further event.
    Stop,
}

/// The client as an application of the host thread.
pub(super) struct GetApp {
    client: GetClient,
    /// `None` after the client was stopped.
    events: Option<Sender<GetEvent>>,
}

impl GetApp {
    fn handle_message(&mut self, now: Instant, host: &mut Host, message: GetMessage) {
        match message {
            GetMessage::Start(order) => self.client.start(now, host, *order),
            GetMessage::Written(id, bytes) => self.client.written(id, bytes),
            GetMessage::Cancel(id) => self.client.cancel(now, host, id),
            GetMessage::Stop => {
                self.events = None;
                self.client.end(now, host);
            }
        }
    }
}

impl Application for GetApp {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.client.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.client.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let worked = self.client.advance(now, host);
        while let Some(event) = self.client.poll_event() {
            // `None` if the subcommand is ending.
            let _gone = self.events.as_ref().map(|events| events.send(event));
        }
        worked
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.client.end(now, host);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.client.visit(f);
    }
}

/// Sends messages to the clients of all queues.
pub(super) struct GetSenders(Vec<MessageSender<GetMessage>>);

impl GetSenders {
    /// Sends a message to the client of a download.
    pub(super) fn send(&self, id: u32, message: GetMessage) {
        let index = id as usize % self.0.len().max(1);
        if let Some(sender) = self.0.get(index) {
            sender.send(message);
        }
    }

    /// Stops all clients.
    pub(super) fn stop(&self) {
        self.0.iter().for_each(|sender| sender.send(GetMessage::Stop));
    }

    /// Returns the senders.
    pub(super) fn all(&self) -> Vec<MessageSender<GetMessage>> {
        self.0.clone()
    }
}

/// Running clients: their stack, the senders of their messages, and their events.
pub(super) type GetSession = (Stack<GetMessage>, GetSenders, Receiver<GetEvent>);

/// Starts the threads of all queues, each with a client.
///
/// # Errors
/// Fails if a resource is missing.
pub(super) fn start(args: &GetArgs, network: Option<Network>) -> Result<GetSession, Failure> {
    let mut options = args.stack.clone();
    if options.gateway.is_empty() && network.is_none() {
        // Servers are usually elsewhere, and the kernel forwards to them.
        options.gateway = options.peer.iter().map(|peer| peer.addr).collect();
    }
    let (sender, events) = channel();
    let steering = quic_steering(args);
    let stack = Stack::builder()
        .options(options)
        .network(network)
        .configure(|_, device, host| {
            let Offloads { tls_tx, tls_rx, quic, .. } = args.stack.offload;
            device.l5o = (tls_tx || tls_rx).then(|| L5oConfig {
                tls_tx,
                tls_rx,
                ..L5oConfig::new(Arc::new(crypto::Provider))
            });
            let quic = quic && args.http3_only;
            device.quic = quic.then(|| QuicConfig::new(Arc::new(crypto::Provider)));
            device.quic_steering = args.http3_only.then_some(steering);
            host.tcp.receive_bytes_max = TCP_WINDOW;
        })
        .application(|queue| {
            let client = client(args, queue, steering)?;
            Ok(GetApp { client, events: Some(sender.clone()) })
        })
        .messages(GetApp::handle_message)
        .alarms(is_alarm)
        .start()?;
    let senders = GetSenders(stack.senders().to_vec());
    Ok((stack, senders, events))
}

/// Returns the steering of the QUIC endpoints of all queues, which share a port.
fn quic_steering(args: &GetArgs) -> QuicSteering {
    let [low, high, ..] = clock::entropy().to_le_bytes();
    QuicSteering {
        port: port_of(&args.stack.active_ports(), u16::from_le_bytes([low, high])),
        id_bytes: quic::CID_BYTES,
        key: clock::entropy(),
        queues: args.stack.queues.into(),
    }
}

/// Returns the port of a range that a number selects.
fn port_of(ports: &RangeInclusive<u16>, number: u16) -> u16 {
    let last = ports.end().saturating_sub(*ports.start());
    ports.start().saturating_add(last.checked_add(1).map_or(number, |count| number % count))
}

fn client(
    args: &GetArgs,
    queue: QueueSetup<'_>,
    steering: QuicSteering,
) -> Result<GetClient, Failure> {
    let config = GetClientConfig {
        user_agent: format!("outboard/{}", env!("CARGO_PKG_VERSION")),
        connect_timeout: Duration::from_secs(args.connect_timeout.into()),
        idle_timeout: Duration::from_secs(args.idle_timeout.into()),
        ..GetClientConfig::default()
    };
    if !args.http3_only {
        return Ok(GetClient::new(config, None));
    }
    // Of programs that share an address each has ports of its own.
    let ports = queue.host.active_ports();
    let is_ours = ports.contains(&steering.port);
    let quic = quic::QuicEndpointConfig {
        port: if is_ours { steering.port } else { port_of(ports, steering.port) },
        steering: (steering.queues > 1).then_some((steering, queue.index)),
        unix_epoch: queue.clock.unix_epoch(),
        receive_windows: QUIC_WINDOWS,
        streams_max: 0,
        ..quic::QuicEndpointConfig::new(
            Arc::new(crypto::Provider),
            clock::std_epoch(),
            crate::entropy::entropy32(),
        )
    };
    let endpoint = quic::QuicEndpoint::new(quic, &tls::provider(), queue.host);
    let endpoint = endpoint.map_err(|e| Failure::System(format!("HTTP/3: {e}")))?;
    Ok(GetClient::new(config, Some(endpoint)))
}
