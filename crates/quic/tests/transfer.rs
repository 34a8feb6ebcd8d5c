//! Whole transfers between two endpoints: in software, with a device that encrypts and decrypts,
//! and with one that fails half-way.

#[path = "transfer/loss.rs"]
mod loss;
mod model_network;
#[path = "transfer/reordering.rs"]
mod reordering;

use abi::{FileId, Refusal};
use base::Duration;
use bytes::Bytes;
use host::{Application as _, Notice};
use model_network::{ModelAbilities, QuicModelNetwork, file_byte};
use outboard_quic::{Dir, QuicEvent, QuicHandle, StreamEvent, StreamId, StreamReadError};

const ALL: ModelAbilities =
    ModelAbilities { quic: true, decrypts: true, refuses: None, files: true, link_mtu: None };

/// A connection on whose first stream the server sends bytes and a file.
struct FileExchange {
    client: QuicHandle,
    server: Option<QuicHandle>,
    file: FileId,
    stream: Option<StreamId>,
    received: Vec<u8>,
    ended: Option<StreamReadError>,
    lost: Vec<&'static str>,
}

const HEAD: &[u8] = b"head";
const OFFSET: u64 = 12_345;

impl FileExchange {
    fn begin(w: &mut QuicModelNetwork) -> Self {
        let file = w.server.host.offload_open("a").expect("there is room");
        let client = w.connect();
        let (server, stream, received, ended) = (None, None, Vec::new(), None);
        Self { client, server, file, stream, received, ended, lost: Vec::new() }
    }

    /// Handles events; returns true when the response has ended.
    fn step(&mut self, w: &mut QuicModelNetwork, len: u64) -> bool {
        while let Some(event) = w.client.endpoint.poll_event() {
            match event {
                QuicEvent::Connected(handle) => {
                    let stream = w.client.endpoint.open_stream(handle, Dir::Bi).expect("allowed");
                    w.client.endpoint.write(handle, stream, Bytes::from_static(b"please"));
                    w.client.endpoint.finish(handle, stream);
                    self.stream = Some(stream);
                }
                QuicEvent::Lost(..) => self.lost.push("client"),
                QuicEvent::Stream(..) => self.read(w),
            }
        }
        while let Some(event) = w.server.endpoint.poll_event() {
            match event {
                QuicEvent::Connected(handle) => self.server = Some(handle),
                QuicEvent::Stream(handle, StreamEvent::Opened { dir: Dir::Bi }) => {
                    let endpoint = &mut w.server.endpoint;
                    let stream = endpoint.accept_stream(handle, Dir::Bi).expect("it is there");
                    endpoint.write(handle, stream, Bytes::from_static(HEAD));
                    let to = (handle, stream);
                    assert!(endpoint.send_file(&mut w.server.host, to, self.file, OFFSET, len));
                    endpoint.write(handle, stream, Bytes::from_static(b"tail"));
                    endpoint.finish(handle, stream);
                }
                QuicEvent::Lost(..) => self.lost.push("server"),
                QuicEvent::Stream(..) => {}
            }
        }
        self.ended.is_some()
    }

    fn read(&mut self, w: &mut QuicModelNetwork) {
        let Some(stream) = self.stream else { return };
        loop {
            match w.client.endpoint.read(self.client, stream, usize::MAX) {
                Ok(bytes) => self.received.extend_from_slice(&bytes),
                Err(StreamReadError::Blocked) => return,
                Err(end) => {
                    self.ended.get_or_insert(end);
                    return;
                }
            }
        }
    }

    fn check(&self, len: u64) {
        assert_eq!(self.ended, Some(StreamReadError::Finished));
        assert_eq!(self.received.len() as u64, 8 + len);
        assert!(self.received.starts_with(HEAD) && self.received.ends_with(b"tail"));
        let body = &self.received[4..self.received.len() - 4];
        let wrong = (OFFSET..).zip(body).find(|(at, byte)| **byte != file_byte(*at));
        assert_eq!(wrong, None, "the file's bytes");
        assert!(self.lost.is_empty());
    }
}

fn exchange(w: &mut QuicModelNetwork, len: u64) -> FileExchange {
    let mut exchange = FileExchange::begin(w);
    let ended = w.run(60, |w| exchange.step(w, len));
    assert!(ended, "{:?}", w.server.endpoint.counters());
    exchange
}

/// Closes the connection and checks that nothing is left of it.
fn close(w: &mut QuicModelNetwork, exchange: &FileExchange) {
    w.server.host.offload_close(exchange.file);
    let now = w.now;
    w.client.endpoint.close(now, &mut w.client.host, exchange.client, 0, "done");
    w.run(30, |_| false);
    for node in [&w.client, &w.server] {
        node.endpoint.visit(&mut |name, value| {
            assert!(name != "quic_connections_open" || value == 0, "{value} are open");
        });
        assert_eq!((node.device.entries(), node.device.routes()), (0, 0));
    }
}

#[test]
fn in_software() {
    let mut w = QuicModelNetwork::new(ModelAbilities::default());
    let e = exchange(&mut w, 1_000_000);
    e.check(1_000_000);
    let counters = w.server.endpoint.counters();
    assert_eq!(counters.quic_file_bytes_software, 1_000_000);
    assert_eq!((counters.quic_offloaded, counters.quic_out_for_device), (0, 0));
    assert_eq!(counters.quic_device_refused_disabled, 1, "there is no engine");
    assert_eq!(w.server.endpoint.offload(e.server.unwrap()), Some(Err(Refusal::NotSupported)));
    close(&mut w, &e);
}

#[test]
fn encrypted_and_decrypted_by_device() {
    let mut w = QuicModelNetwork::new(ALL);
    let e = exchange(&mut w, 4_000_000);
    e.check(4_000_000);
    let counters = w.server.endpoint.counters().clone();
    assert_eq!(counters.quic_offloaded, 1);
    assert!(counters.quic_file_bytes_offloaded > 3_000_000, "{counters:?}");
    assert!(counters.quic_file_bytes_offloaded + counters.quic_file_bytes_software == 4_000_000);
    assert_eq!(w.server.device.encrypted, counters.quic_out_for_device);
    assert!(counters.quic_in_opened > 10 && counters.quic_in_disagreed == 0, "{counters:?}");
    assert_eq!((counters.quic_out_late, counters.quic_out_malformed), (0, 0));
    // A quarter of the 10 ms round-trip time.
    let waits = Duration::from_micros(2500);
    assert_eq!(w.server.device.reorder_times(), [Some(waits)]);
    close(&mut w, &e);
    assert_eq!(w.server.device.file_bytes[1], counters.quic_file_bytes_offloaded, "all let go");
}

/// A closed file stays readable, for host and device, until all that was queued of it has been
/// acknowledged, even if a notice about the file arrives after the close.
#[test]
fn a_closed_file_is_sent_whole() {
    for able in [ModelAbilities::default(), ALL] {
        let mut w = QuicModelNetwork::new(able);
        let mut e = FileExchange::begin(&mut w);
        let mut closed = false;
        let ended = w.run(60, |w| {
            if e.received.len() > 400_000 && !closed {
                closed = true;
                let (now, server) = (w.now, &mut w.server);
                server.host.offload_close(e.file);
                server.endpoint.handle_notice(now, &mut server.host, Notice::File(e.file));
            }
            e.step(w, 1_000_000)
        });
        assert!(ended && closed);
        e.check(1_000_000);
        assert_eq!(w.server.endpoint.counters().quic_offloaded, u64::from(able.quic));
    }
}

#[test]
fn with_loss() {
    for able in [ModelAbilities::default(), ALL] {
        let mut w = QuicModelNetwork::new(able);
        w.lose_every = Some(17);
        let e = exchange(&mut w, 2_000_000);
        e.check(2_000_000);
        let [read, acked] = w.server.device.file_bytes;
        assert!(!able.quic || read > w.server.endpoint.counters().quic_file_bytes_offloaded);
        w.lose_every = None;
        close(&mut w, &e);
        assert!(w.server.device.file_bytes[1] >= acked);
    }
}

#[test]
fn keys_are_updated_by_either_side() {
    for by_server in [true, false] {
        let mut w = QuicModelNetwork::new(ALL);
        let mut e = FileExchange::begin(&mut w);
        let mut updates = 0;
        let ended = w.run(60, |w| {
            let len = e.received.len();
            if len > 1_000_000 * (updates + 1) {
                updates += 1;
                let node = if by_server { &mut w.server } else { &mut w.client };
                let handle = if by_server { e.server.unwrap() } else { e.client };
                node.endpoint.update_keys(handle);
            }
            e.step(w, 4_000_000)
        });
        assert!(ended && updates >= 3, "{updates}");
        e.check(4_000_000);
        let counters = w.server.endpoint.counters();
        assert!(counters.quic_rekeys >= 4, "{counters:?}");
        assert_eq!(counters.quic_not_sealed, 0);
        assert_eq!(w.server.device.encrypted, counters.quic_out_for_device);
        close(&mut w, &e);
    }
}

#[test]
fn refusals_are_counted_and_cost_nothing() {
    // After a full table the device is asked again: first within 64 KiB, then each time the bytes
    // carried have doubled, up to a megabyte.
    for (why, name, refused) in [
        (Refusal::TableFull, "quic_device_refused_full", 10),
        (Refusal::UnknownProtocol, "quic_device_refused_protocol", 2),
        (Refusal::Overloaded, "quic_device_refused_other", 2),
    ] {
        let mut w = QuicModelNetwork::new(ModelAbilities { refuses: Some(why), ..ALL });
        let e = exchange(&mut w, 1_500_000);
        e.check(1_500_000);
        w.server.endpoint.visit(&mut |counter, value| {
            assert!(counter != name || value == refused, "{name}: {value}");
        });
        assert_eq!(w.server.endpoint.offload(e.server.unwrap()), Some(Err(why)));
        close(&mut w, &e);
    }
}

/// The host retransmits packets that were in the device, and reads the file content of lost ones.
#[test]
fn a_reset_of_the_device_loses_nothing() {
    let mut w = QuicModelNetwork::new(ALL);
    w.lose_every = Some(23);
    let mut e = FileExchange::begin(&mut w);
    let mut reset = false;
    let ended = w.run(60, |w| {
        if e.received.len() > 1_000_000 && !reset {
            reset = true;
            w.reset_device();
        }
        e.step(w, 3_000_000)
    });
    assert!(ended);
    e.check(3_000_000);
    let counters = w.server.endpoint.counters();
    assert_eq!(counters.quic_device_resets, 1);
    assert_eq!(counters.quic_offloaded, 2, "it is asked again");
    assert!(counters.quic_out_late > 0, "{counters:?}");
    w.lose_every = None;
    close(&mut w, &e);
}

#[test]
fn a_file_that_fails_resets_its_stream() {
    let mut w = QuicModelNetwork::new(ALL);
    let mut e = FileExchange::begin(&mut w);
    let ended = w.run(60, |w| {
        w.server.device.file_reads_fail = e.received.len() > 1_000_000;
        e.step(w, 3_000_000)
    });
    assert!(ended);
    assert_eq!(e.ended, Some(StreamReadError::Reset(0x0102)), "H3_INTERNAL_ERROR");
    assert_eq!(w.server.endpoint.counters().quic_file_failures, 1);
    close(&mut w, &e);
}

/// Requests a response of these file ranges, offset and length, on a new stream, and returns it.
fn respond_with(w: &mut QuicModelNetwork, e: &FileExchange, pieces: &[(u64, u64)]) -> Vec<u8> {
    let (client, server) = (e.client, e.server.unwrap());
    let stream = w.client.endpoint.open_stream(client, Dir::Bi).unwrap();
    w.client.endpoint.write(client, stream, Bytes::from_static(b"please"));
    w.client.endpoint.finish(client, stream);
    let mut received = Vec::new();
    let ended = w.run(60, |w| {
        while let Some(event) = w.server.endpoint.poll_event() {
            let QuicEvent::Stream(_, StreamEvent::Opened { dir: Dir::Bi }) = event else {
                continue;
            };
            let (endpoint, host) = (&mut w.server.endpoint, &mut w.server.host);
            let answer = endpoint.accept_stream(server, Dir::Bi).unwrap();
            for &(offset, len) in pieces {
                assert!(endpoint.send_file(host, (server, answer), e.file, offset, len));
            }
            endpoint.finish(server, answer);
        }
        while w.client.endpoint.poll_event().is_some() {}
        let mut chunks = Vec::new();
        let end = w.client.endpoint.read_chunks(client, stream, usize::MAX, &mut chunks);
        chunks.iter().for_each(|chunk| received.extend_from_slice(chunk));
        end == Err(StreamReadError::Finished)
    });
    assert!(ended, "{:?}", w.server.endpoint.counters());
    let of_piece = |&(offset, len): &(u64, u64)| (offset..offset + len).map(file_byte);
    assert!(received == pieces.iter().flat_map(of_piece).collect::<Vec<u8>>(), "the bytes");
    received
}

/// A datagram with more file extents than a transmit may have, as with the ends of many short
/// responses: the host reads the content, and the device continues with the next datagrams.
#[test]
fn many_file_extents_in_a_datagram() {
    let mut w = QuicModelNetwork::new(ALL);
    let e = exchange(&mut w, 1_000_000);
    let before = w.server.endpoint.counters().clone();
    let pieces: Vec<(u64, u64)> = (0..40).map(|piece| (piece * 1000, 10)).collect();
    respond_with(&mut w, &e, &pieces);
    let counters = w.server.endpoint.counters().clone();
    assert_eq!((counters.quic_out_too_many_extents, counters.quic_out_late), (1, 1));
    assert_eq!(counters.quic_file_bytes_late - before.quic_file_bytes_late, 400);
    assert_eq!((counters.quic_file_failures, counters.quic_offloaded), (0, 1));
    close(&mut w, &e);
}

/// The other datagrams of its batch are the device's.
#[test]
fn device_sends_the_datagrams_beside_one_with_many_extents() {
    let mut w = QuicModelNetwork::new(ALL);
    let e = exchange(&mut w, 1_000_000);
    let before = w.server.endpoint.counters().clone();
    let mut pieces = vec![(0, 20_000)];
    pieces.extend((30..70).map(|piece| (piece * 1000, 10)));
    pieces.push((100_000, 20_000));
    respond_with(&mut w, &e, &pieces);
    let counters = w.server.endpoint.counters().clone();
    let late = counters.quic_out_late - before.quic_out_late;
    assert!((1..=2).contains(&late), "{counters:?}");
    assert_eq!(counters.quic_out_too_many_extents, late);
    let by_device = counters.quic_out_for_device - before.quic_out_for_device;
    assert!(by_device >= 40_000 / 1452, "{counters:?}");
    assert_eq!((counters.quic_file_failures, counters.quic_offloaded), (0, 1));
    close(&mut w, &e);
}

/// The path's MTU bounds the datagrams, and the probes above it cost no window.
#[test]
fn datagrams_grow_to_the_mtu_of_the_path() {
    for (link, path, want) in [(9000, usize::MAX, 8900..=8952), (9000, 1500, 1400..=1472)] {
        let link_mtu = Some(link);
        let client = ModelAbilities { link_mtu, ..ModelAbilities::default() };
        let mut w = QuicModelNetwork::with(ModelAbilities { link_mtu, ..ALL }, client, |_| {});
        w.path_mtu = path;
        let e = exchange(&mut w, 3_000_000);
        e.check(3_000_000);
        let info = w.server.endpoint.info(e.server.unwrap()).expect("a connection");
        assert!(want.contains(&info.stats.path.current_mtu), "{:?}", info.stats.path);
        assert_eq!(info.reductions[0] - info.reductions[1], 0, "{:?}", info.stats.path);
    }
}

/// Equal seeds repeat a run.
#[test]
fn runs_repeat() {
    let run = || {
        let mut w = QuicModelNetwork::new(ALL);
        w.lose_every = Some(11);
        exchange(&mut w, 500_000).check(500_000);
        (w.now, w.server.device.file_bytes)
    };
    // TLS draws its own random numbers, but they affect no packet length that matters here.
    assert_eq!(run().1[1], run().1[1]);
}

/// Buffer for a qlog.
#[derive(Clone, Default)]
struct QlogBuffer(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for QlogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_connection_writes_a_qlog() {
    let (log, ids) =
        (QlogBuffer::default(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let (to, seen) = (log.clone(), std::sync::Arc::clone(&ids));
    let open: outboard_quic::OpenQlog = std::sync::Arc::new(move |id, side| {
        assert!(side.is_server());
        seen.lock().expect("no test panicked").push(id.to_vec());
        Some(Box::new(to.clone()) as outboard_quic::QlogWriter)
    });
    let mut w =
        QuicModelNetwork::with(ALL, ModelAbilities::default(), |config| config.qlog = Some(open));
    w.lose_every = Some(50);
    let e = exchange(&mut w, 1_000_000);
    e.check(1_000_000);
    let ids = ids.lock().expect("no test panicked");
    assert_eq!(ids.iter().map(Vec::len).collect::<Vec<_>>(), [16], "the client's first choice");
    let bytes = log.0.lock().expect("no test panicked");
    // RFC 7464: each record begins with a record separator and ends with a line feed.
    let records: Vec<&[u8]> = bytes.split(|byte| *byte == 0x1e).skip(1).collect();
    assert!(records.iter().all(|r| r.starts_with(b"{") && r.ends_with(b"}\n")));
    let count = |name: &str| {
        let has = |record: &&&[u8]| record.windows(name.len()).any(|w| w == name.as_bytes());
        records.iter().filter(has).count() as u64
    };
    let stats = w.server.endpoint.info(e.server.unwrap()).expect("it is there").stats;
    assert_eq!(count("packet_lost"), stats.path.lost_packets);
    assert!(stats.path.lost_packets > 0 && count("packet_received") > 50);
    assert!(count("packet_sent") > 700 && count("metrics_updated") > 50);
    assert!(count("\"pto_count\"") > 0, "what `ss` cannot say");
}

#[test]
fn info_shows_stream_wait_reasons() {
    let mut w = QuicModelNetwork::with(ALL, ModelAbilities::default(), |config| {
        config.idle_timeout = Duration::from_secs(1000)
    });
    let mut e = FileExchange::begin(&mut w);
    // The client does not read, so its stream window fills up.
    let stuck = |w: &mut QuicModelNetwork, e: &mut FileExchange| {
        while let Some(event) = w.client.endpoint.poll_event() {
            if let QuicEvent::Connected(handle) = event {
                let stream = w.client.endpoint.open_stream(handle, Dir::Bi).expect("allowed");
                w.client.endpoint.write(handle, stream, Bytes::from_static(b"please"));
                w.client.endpoint.finish(handle, stream);
            }
        }
        e.step(w, 4_000_000);
    };
    w.run(5, |w| {
        stuck(w, &mut e);
        false
    });
    let info = w.server.endpoint.info(e.server.expect("connected")).expect("it is there");
    assert_eq!((info.waiting.stream_credit, info.streams), (1, 1), "{:?}", info.waiting);
    assert_eq!((info.version, info.closed), (1, None));
    assert!(!info.ids.is_empty());
    assert_eq!(info.peer_id.map(|id| id.as_slice().len()), Some(8));
    let (now, client) = (w.now, e.client);
    w.client.endpoint.close(now, &mut w.client.host, client, 7, "enough");
    let server = e.server.expect("connected");
    let closed = |w: &QuicModelNetwork| w.server.endpoint.info(server).and_then(|info| info.closed);
    assert!(w.run(5, |w| closed(w).is_some()));
    assert!(closed(&w).is_some_and(|why| why.contains("enough")), "{:?}", closed(&w));
}
