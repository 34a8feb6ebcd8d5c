//! Downloads over paths that delay single packets are nearly as fast as without the delays.

use base::Duration;
use bytes::Bytes;
use outboard_quic::{Dir, QuicEvent, QuicHandle, StreamEvent, StreamId, StreamReadError};

use crate::model_network::{ModelAbilities, QuicModelNetwork};

pub(crate) const DEVICE: ModelAbilities =
    ModelAbilities { quic: true, decrypts: true, refuses: None, files: true, link_mtu: None };
/// Extra delay of the late packets, on a path with a round-trip time of 10 ms.
const LATE: Duration = Duration::from_micros(6500);
pub(crate) const BYTES: u64 = 40_000_000;
/// Bandwidth of the path in bytes per second.
const RATE: u64 = 20_000_000;
/// More than the path holds, since the client cannot read past a late packet.
const WINDOWS: [u32; 2] = [1 << 20, 1 << 20];

/// Downloads a file; returns the world afterwards and the duration.
pub(crate) fn download(
    device: ModelAbilities,
    prepare: impl FnOnce(&mut QuicModelNetwork),
) -> (QuicModelNetwork, Duration) {
    let mut w = QuicModelNetwork::with_windows(device, ModelAbilities::default(), WINDOWS, |_| {});
    w.rate = RATE;
    prepare(&mut w);
    let file = w.server.host.offload_open("a").expect("there is room");
    let (client, began) = (w.connect(), w.now);
    let (mut stream, mut received, mut lost) = (None, 0, 0);
    let ended = w.run(120, |w| {
        while let Some(event) = w.server.endpoint.poll_event() {
            answer(w, &event, file);
            lost += u32::from(matches!(event, QuicEvent::Lost(..)));
        }
        while let Some(event) = w.client.endpoint.poll_event() {
            if let QuicEvent::Connected(handle) = event {
                stream = Some(ask(w, handle));
            }
            lost += u32::from(matches!(event, QuicEvent::Lost(..)));
        }
        stream.is_some_and(|stream| read(w, client, stream, &mut received))
    });
    let took = w.now.since(began);
    assert!(ended && lost == 0, "{received} bytes in {took}, {:?}", w.server.endpoint.counters());
    assert_eq!(received, BYTES);
    (w, took)
}

fn ask(w: &mut QuicModelNetwork, handle: QuicHandle) -> StreamId {
    let stream = w.client.endpoint.open_stream(handle, Dir::Bi).expect("allowed");
    w.client.endpoint.write(handle, stream, Bytes::from_static(b"please"));
    w.client.endpoint.finish(handle, stream);
    stream
}

fn answer(w: &mut QuicModelNetwork, event: &QuicEvent, file: abi::FileId) {
    let QuicEvent::Stream(handle, StreamEvent::Opened { dir: Dir::Bi }) = *event else { return };
    let endpoint = &mut w.server.endpoint;
    let stream = endpoint.accept_stream(handle, Dir::Bi).expect("it is there");
    assert!(endpoint.send_file(&mut w.server.host, (handle, stream), file, 0, BYTES));
    endpoint.finish(handle, stream);
}

/// Reads all available bytes; returns true at the end of the stream.
fn read(
    w: &mut QuicModelNetwork,
    client: QuicHandle,
    stream: StreamId,
    received: &mut u64,
) -> bool {
    loop {
        match w.client.endpoint.read(client, stream, usize::MAX) {
            Ok(bytes) => *received += bytes.len() as u64,
            Err(StreamReadError::Blocked) => return false,
            Err(end) => return end == StreamReadError::Finished,
        }
    }
}

/// Returns the throughput in bytes per second.
pub(crate) fn rate(took: Duration) -> u64 {
    BYTES * 1_000_000 / took.as_micros()
}

fn late_packets_cost_little(device: ModelAbilities, ppm: u64) {
    let (w, undisturbed) = download(device, |_| {});
    assert_eq!(w.server.endpoint.counters().quic_losses_spurious, 0);
    let (w, took) = download(device, |w| w.late = (ppm, LATE));
    let (rate, full) = (rate(took), rate(undisturbed));
    assert!(full * 100 > RATE * 80, "{full} bytes per second");
    assert!(rate * 100 >= full * 70, "{rate} of {full} bytes per second");
    let counters = w.server.endpoint.counters();
    let (spurious, spared) = (counters.quic_losses_spurious, counters.quic_losses_spared);
    let mut infos = w.server.endpoint.infos();
    let info = infos.next().expect("it is open");
    assert_eq!(info.losses_spurious, spurious);
    assert_eq!(info.reductions, [counters.quic_reductions, counters.quic_reductions_undone]);
    let late = BYTES / 1452 * ppm / 1_000_000;
    assert!((late / 2..late * 2).contains(&spurious), "{spurious} of {late}");
    assert!(spared > spurious / 2 && counters.quic_reductions_undone > 0, "{counters:?}");
}

#[test]
fn late_packets_cost_little_in_software() {
    late_packets_cost_little(ModelAbilities::default(), 20_000);
}

#[test]
fn late_packets_cost_little_with_a_device() {
    late_packets_cost_little(DEVICE, 20_000);
    late_packets_cost_little(DEVICE, 2_000);
}

/// Only late packets are waited for; real losses still reduce the window.
#[test]
fn losses_count_among_late_packets() {
    let (_, undisturbed) = download(DEVICE, |_| {});
    let (w, took) = download(DEVICE, |w| {
        w.late = (20_000, LATE);
        w.lose_every = Some(100);
    });
    let counters = w.server.endpoint.counters();
    assert!(rate(took) * 2 < rate(undisturbed), "{} bytes per second", rate(took));
    assert!(counters.quic_losses_spared > 100, "{counters:?}");
}
