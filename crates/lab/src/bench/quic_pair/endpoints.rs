//! QUIC applications of accounted benchmarks: a client that downloads, and a server.
//!
//! The client opens a number of connections and downloads one object after another on each: on a
//! stream of its own, or on a connection of its own. The server answers with a file, or from
//! memory. The client samples the content and compares its length.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use abi::FileId;
use base::Instant;
use bytes::Bytes;
use host::{Application, Host, Notice};
use io::clock::cycles;
use quic::{
    ConnectionError, Dir, QuicEndpoint, QuicEvent, QuicHandle, StreamEvent, StreamId,
    StreamReadError,
};

use crate::bench::cycle_accounting::BenchApp;
use crate::bench::testbed::Files;
use crate::bench::timed_crypto::CycleMeter;

/// Bytes read from a stream at a time.
const READ_BYTES: usize = 1 << 20;
/// One of this many bytes is compared.
const SAMPLE: usize = 509;

/// The application of either end: an endpoint and its role.
pub(crate) struct QuicBenchApp {
    pub(crate) endpoint: QuicEndpoint,
    role: QuicBenchRole,
    /// Errors; the first one ends the run.
    errors: Vec<String>,
    /// Cycles by kind of work; kept apart from crypto only with a meter.
    pub(crate) spent: QuicCycles,
    /// Something was received since packets were last sent.
    received: bool,
    meter: Option<CycleMeter>,
    /// Bytes read from a stream; empty between calls.
    chunks: Vec<Bytes>,
}

/// Cycles by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuicCycles {
    /// Processing received packets: acknowledgments, ordering, flow control, streams; without
    /// crypto.
    pub(crate) receiving: u64,
    /// Building packets, without crypto.
    pub(crate) formatting: u64,
    /// Encryption, decryption and header protection.
    pub(crate) crypto: u64,
}

impl QuicCycles {
    /// Returns the difference to an earlier value.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            receiving: self.receiving - before.receiving,
            formatting: self.formatting - before.formatting,
            crypto: self.crypto - before.crypto,
        }
    }
}

/// Content of a server's responses.
pub(crate) enum QuicServerContent {
    /// The file with the requested number.
    Files(Vec<FileId>),
    /// A response of this many bytes, made of repetitions of these.
    Memory(Bytes, u64),
}

enum QuicBenchRole {
    Server { answer: QuicServerContent, requests: BTreeMap<(QuicHandle, StreamId), Vec<u8>> },
    Client(QuicDownloadClient),
}

struct QuicDownloadClient {
    server: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    connections: u32,
    /// A connection is closed after its first object, and a new one is opened.
    close_after_object: bool,
    files: Files,
    asked: u32,
    downloads: BTreeMap<QuicHandle, Download>,
    objects: u64,
    bytes: u64,
}

struct Download {
    stream: StreamId,
    file: u32,
    received: u64,
}

impl QuicServerContent {
    /// Answers a request for object `number`; returns false if there is none.
    fn write(
        &self,
        endpoint: &mut QuicEndpoint,
        host: &mut Host,
        (handle, stream): (QuicHandle, StreamId),
        number: u32,
    ) -> bool {
        match self {
            Self::Files(files) => {
                let file = files.get(number as usize).copied();
                let stat = file.and_then(|file| Some((file, host.offload_fstat(file)?.ok()?)));
                let Some((file, stat)) = stat else { return false };
                endpoint.send_file(host, (handle, stream), file, 0, stat.size)
            }
            Self::Memory(pattern, size) => {
                let mut left = *size;
                while left > 0 {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(pattern.len());
                    endpoint.write(handle, stream, pattern.slice(..len));
                    left -= len as u64;
                }
                true
            }
        }
    }
}

impl QuicBenchApp {
    /// Returns a server with this content.
    pub(crate) fn server(
        endpoint: QuicEndpoint,
        answer: QuicServerContent,
        meter: Option<CycleMeter>,
    ) -> Self {
        Self::new(endpoint, QuicBenchRole::Server { answer, requests: BTreeMap::new() }, meter)
    }

    /// Returns a client of `server`. `connections` is the number of connections, and whether each
    /// ends after one object.
    pub(crate) fn client(
        endpoint: QuicEndpoint,
        server: SocketAddr,
        tls: Arc<rustls::ClientConfig>,
        (connections, once): (u32, bool),
        files: Files,
        meter: Option<CycleMeter>,
    ) -> Self {
        let client = QuicDownloadClient {
            server,
            tls,
            connections,
            close_after_object: once,
            files,
            asked: 0,
            downloads: BTreeMap::new(),
            objects: 0,
            bytes: 0,
        };
        Self::new(endpoint, QuicBenchRole::Client(client), meter)
    }

    fn new(endpoint: QuicEndpoint, role: QuicBenchRole, meter: Option<CycleMeter>) -> Self {
        Self {
            endpoint,
            role,
            errors: Vec::new(),
            spent: QuicCycles::default(),
            received: false,
            meter,
            chunks: Vec::new(),
        }
    }

    /// Returns the number of complete objects, and the bytes of objects, that were received.
    pub(crate) const fn received(&self) -> (u64, u64) {
        match &self.role {
            QuicBenchRole::Client(client) => (client.objects, client.bytes),
            QuicBenchRole::Server { .. } => (0, 0),
        }
    }

    /// Returns the bytes received of each connection's present object, in the order of connections.
    pub(crate) fn received_by_connection(&self) -> Vec<u64> {
        match &self.role {
            QuicBenchRole::Client(client) => {
                client.downloads.values().map(|download| download.received).collect()
            }
            QuicBenchRole::Server { .. } => Vec::new(),
        }
    }

    fn connect(&mut self, now: Instant, host: &mut Host) {
        let QuicBenchRole::Client(client) = &self.role else { return };
        if let Err(e) = self.endpoint.connect(now, host, client.server, "server", &client.tls) {
            self.errors.push(format!("{e:?}"));
        }
    }

    /// Does `work` and charges its cycles to receiving, except those of crypto.
    fn charge_receiving(&mut self, work: impl FnOnce(&mut Self)) {
        let (from, sealed) = (cycles(), self.crypto_cycles());
        self.received = true;
        work(self);
        let crypto = self.crypto_cycles() - sealed;
        self.spent.receiving += (cycles() - from) - crypto;
        self.spent.crypto += crypto;
    }

    /// Returns the cycles of crypto so far.
    fn crypto_cycles(&self) -> u64 {
        self.meter.as_ref().map_or(0, CycleMeter::cycles)
    }

    fn take_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let Notice::File(file) = notice {
            if !matches!(host.offload_fstat(file), Some(Ok(_))) {
                self.errors.push("cannot open a file".to_owned());
            }
        }
        self.endpoint.handle_notice(now, host, notice);
    }

    fn handle_event(&mut self, now: Instant, host: &mut Host, event: QuicEvent) {
        match event {
            QuicEvent::Connected(handle) => self.request_object(handle),
            QuicEvent::Stream(handle, StreamEvent::Opened { dir: Dir::Bi }) => {
                while let Some(stream) = self.endpoint.accept_stream(handle, Dir::Bi) {
                    self.read(now, host, (handle, stream));
                }
            }
            QuicEvent::Stream(handle, StreamEvent::Readable { id }) => {
                self.read(now, host, (handle, id));
            }
            // The client closes a connection that is used for one object.
            QuicEvent::Lost(_, ConnectionError::ApplicationClosed(_)) => {}
            QuicEvent::Lost(_, why) => self.errors.push(why.to_string()),
            _ => {}
        }
    }

    /// Requests the next object.
    fn request_object(&mut self, handle: QuicHandle) {
        let QuicBenchRole::Client(client) = &mut self.role else { return };
        let Some(stream) = self.endpoint.open_stream(handle, Dir::Bi) else {
            self.errors.push("cannot open a stream".to_owned());
            return;
        };
        let file = client.asked % client.files.count;
        client.asked += 1;
        client.downloads.insert(handle, Download { stream, file, received: 0 });
        self.endpoint.write(handle, stream, Bytes::copy_from_slice(&file.to_be_bytes()));
        self.endpoint.finish(handle, stream);
    }

    fn read(&mut self, now: Instant, host: &mut Host, (handle, stream): (QuicHandle, StreamId)) {
        let mut chunks = core::mem::take(&mut self.chunks);
        loop {
            let end = self.endpoint.read_chunks(handle, stream, READ_BYTES, &mut chunks);
            for bytes in chunks.drain(..) {
                self.handle_bytes(handle, stream, &bytes);
            }
            match end {
                Ok(()) => continue,
                // The stream may have been read to its end since it became readable.
                Err(StreamReadError::Blocked | StreamReadError::NoStream) => {}
                Err(StreamReadError::Finished) => {
                    self.handle_stream_end(now, host, (handle, stream));
                }
                Err(StreamReadError::Reset(_)) => {
                    self.errors.push("stream reset by the peer".to_owned());
                }
            }
            break;
        }
        self.chunks = chunks;
    }

    fn handle_bytes(&mut self, handle: QuicHandle, stream: StreamId, bytes: &Bytes) {
        match &mut self.role {
            QuicBenchRole::Server { requests, .. } => {
                requests.entry((handle, stream)).or_default().extend_from_slice(bytes);
            }
            QuicBenchRole::Client(client) => {
                let Some(download) = client.downloads.get_mut(&handle) else { return };
                let byte =
                    |at: usize| (client.files.byte)(download.file, download.received + at as u64);
                let wrong = (0..bytes.len()).step_by(SAMPLE).find(|&at| bytes[at] != byte(at));
                if download.stream != stream || wrong.is_some() {
                    self.errors.push("data mismatch".to_owned());
                }
                download.received += bytes.len() as u64;
                client.bytes += bytes.len() as u64;
            }
        }
    }

    /// Handles the end of a stream.
    fn handle_stream_end(
        &mut self,
        now: Instant,
        host: &mut Host,
        (handle, stream): (QuicHandle, StreamId),
    ) {
        match &mut self.role {
            QuicBenchRole::Server { answer, requests } => {
                let request = requests.remove(&(handle, stream)).unwrap_or_default();
                let number = <[u8; 4]>::try_from(&request[..]).map(u32::from_be_bytes);
                let answered = number.is_ok_and(|number| {
                    answer.write(&mut self.endpoint, host, (handle, stream), number)
                });
                if !answered {
                    return self.errors.push("invalid request".to_owned());
                }
                self.endpoint.finish(handle, stream);
            }
            QuicBenchRole::Client(client) => {
                let download = client.downloads.remove(&handle);
                if download.is_none_or(|d| d.received != client.files.size) {
                    self.errors.push("object length mismatch".to_owned());
                }
                client.objects += 1;
                if client.close_after_object {
                    self.endpoint.close(now, host, handle, 0, "");
                    self.connect(now, host);
                } else {
                    self.request_object(handle);
                }
            }
        }
    }
}

impl Application for QuicBenchApp {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.charge_receiving(|end| end.take_notice(now, host, notice));
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.charge_receiving(|end| end.endpoint.handle_timeout(now, host));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.endpoint.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = false;
        while let Some(event) = self.endpoint.poll_event() {
            self.charge_receiving(|end| end.handle_event(now, host, event));
            worked = true;
        }
        let (from, sealed) = (cycles(), self.crypto_cycles());
        self.endpoint.flush(now, host);
        // A call without received packets or events is not charged.
        if core::mem::take(&mut self.received) || worked {
            let crypto = self.crypto_cycles() - sealed;
            self.spent.formatting += (cycles() - from) - crypto;
            self.spent.crypto += crypto;
        }
        worked
    }
}

impl BenchApp for QuicBenchApp {
    /// Opens the connections.
    fn start(&mut self, now: Instant, host: &mut Host) {
        let QuicBenchRole::Client(client) = &self.role else { return };
        for _ in 0..client.connections {
            self.connect(now, host);
        }
        self.endpoint.flush(now, host);
    }

    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }

    fn count(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.visit(f);
    }
}
