//! A device process against programs that break the rules of the attachment, of the rings and of
//! the descriptors. Each abuse is refused and counted, and an honest program is served afterwards.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use abi::attach::{AttachReply, AttachRequest, RootIdentity};
use abi::layout::{
    ATTACH_BYTES_MAX, DESCRIPTOR_BYTES_MAX, InlineMemory, decode_attach_reply,
    encode_attach_request, encode_op,
};
use abi::{FlowId, Op, PacketHeader, PacketPool, Transmit, TransmitPart, TransmitParts};
use base::Duration;
use bytes::Bytes;
use interop::{Files, Netns, TestServer, sha256};
use io::attachment::AttachmentSocket;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Offsets in the memory of a ring, and its capacity.
const TAIL_AT: u64 = 0;
const HEAD_AT: u64 = 128;
const DATA_AT: u64 = 4096;
const CAPACITY: u32 = 2 << 20;

/// A device process with a root, in a namespace.
struct DeviceFixture {
    device: TestServer,
    netns: Arc<Netns>,
    files: Files,
    scratch: Files,
}

impl DeviceFixture {
    fn start() -> Self {
        let (netns, files) = (Arc::new(Netns::new()), Files::new(TMP));
        // The path of a Unix socket has at most 107 bytes.
        let scratch = Files::new("/tmp");
        let root = format!("site={}", files.path().display());
        let listen = scratch.path().join("nic");
        let listen = listen.to_str().expect("UTF-8");
        let device =
            TestServer::device(Arc::clone(&netns), &["nic", "--root", &root, "--listen", listen]);
        Self { device, netns, files, scratch }
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("nic")
    }

    /// Waits until a counter of the device has this value.
    fn wait_for(&self, counter: &str, value: u64, abuse: &str) {
        for _ in 0..1000 {
            if self.device.stat().get(counter) == value {
                return;
            }
        }
        panic!("{abuse}: {counter} is not {value}: {:?}", self.device.stat());
    }

    /// Serves a file by a real program.
    fn expect_honest_service(&self) {
        let want = sha256(&self.files.fill("a.bin", 300_000));
        let folder = self.files.path().to_string_lossy().into_owned();
        let nic = format!("unix:{}", self.socket().display());
        let args = ["serve", &folder, "--nic", &nic, "--tls", "--addr", "10.77.0.2/24"];
        let program = TestServer::attached(Arc::clone(&self.netns), &args);
        let to = self.scratch.path().join("got");
        let mut curl = program.command("curl");
        curl.args(["-sSfk", "--max-time", "60", "-o"]).arg(&to).arg("https://10.77.0.2/a.bin");
        let _ = interop::expect_success(&interop::run(&mut curl));
        assert_eq!(sha256(&to), want);
        program.stat().expect_zero(&["nic_lost", "nic_carrier_faults"]);
    }
}

/// A program that has attached, and writes what it likes to the rings.
struct HostileProgram {
    socket: UnixStream,
    ops: File,
}

impl HostileProgram {
    fn attach(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the device listens");
        let socket = AttachmentSocket::new(stream.try_clone().expect("a descriptor"));
        let request = encode_attach_request(&AttachRequest { root: None });
        socket.send(&request, &[]).expect("it reads");
        let (reply, fds) = socket.receive(ATTACH_BYTES_MAX, LIMIT).expect("an answer");
        let reply = decode_attach_reply(&reply).expect("of this version");
        assert!(matches!(reply, AttachReply::Attached(_)), "{reply:?}");
        let ops = fds.into_iter().next().expect("a ring");
        Self { socket: stream, ops: File::from(ops) }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.ops.write_all_at(bytes, at).expect("the ring can be written");
    }

    fn publish(&self, tail: u32) {
        self.write(TAIL_AT, &tail.to_le_bytes());
        self.ring();
    }

    fn ring(&self) {
        // The device may have closed the socket already.
        let _ = (&self.socket).write_all(&[0]);
    }

    /// Sends the first descriptor of the ring, with this length in front.
    fn send(&self, length: u32, bytes: &[u8]) {
        self.write(DATA_AT, &length.to_le_bytes());
        self.write(DATA_AT + 4, bytes);
        self.publish((4 + u32::try_from(bytes.len()).expect("short")).next_multiple_of(8));
    }

    fn send_descriptor(&self, bytes: &[u8]) {
        self.send(u32::try_from(bytes.len()).expect("short"), bytes);
    }
}

/// Connects, sends bytes and closes the sending direction; the device must close, too.
fn say(path: &Path, bytes: &[u8]) {
    let mut stream = UnixStream::connect(path).expect("the device listens");
    stream.write_all(bytes).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("connected");
    let socket = AttachmentSocket::new(stream);
    if let Ok((reply, fds)) = socket.receive(ATTACH_BYTES_MAX, LIMIT) {
        let reply = decode_attach_reply(&reply).expect("of this version");
        assert!(matches!(reply, AttachReply::Refused(_)) && fds.is_empty(), "{reply:?}");
    }
}

/// Returns a message with its length in front.
fn message(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short").to_le_bytes();
    [&length, content].concat()
}

/// Requests that are refused, with their names.
fn abusive_requests() -> Vec<(String, Vec<u8>)> {
    let good = encode_attach_request(&AttachRequest { root: None });
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        message(&bytes)
    };
    let root = RootIdentity { device: 1, inode: 2 };
    let mut all = vec![
        ("no request".to_owned(), vec![]),
        ("half of a length".to_owned(), vec![9, 0]),
        ("an empty message".to_owned(), message(&[])),
        ("a length of 4 GiB".to_owned(), vec![0xff; 4]),
        ("a long message".to_owned(), message(&vec![0; ATTACH_BYTES_MAX + 1])),
        ("half of a request".to_owned(), message(&good)[..12].to_vec()),
        ("another magic".to_owned(), changed(0)),
        ("another version".to_owned(), changed(8)),
        ("another fingerprint".to_owned(), changed(10)),
        ("an unknown option".to_owned(), changed(18)),
        ("bytes after the request".to_owned(), message(&[&good[..], &[0]].concat())),
        ("a request of HTTP".to_owned(), b"GET / HTTP/1.1\r\nHost: nic\r\n\r\n".to_vec()),
    ];
    let unknown = encode_attach_request(&AttachRequest { root: Some(root) });
    all.push(("an unknown root".to_owned(), message(&unknown)));
    all
}

/// Descriptors that are refused, with their names.
fn abusive_descriptors() -> Vec<(String, Vec<u8>)> {
    let mut memory = InlineMemory { pool: PacketPool::new(1), patterns: vec![] };
    let mut encoded = |op: Op| {
        let mut bytes = vec![];
        encode_op(op, &mut memory, &mut bytes).expect("it has a layout");
        bytes
    };
    let cancel = encoded(Op::Cancel { flow: FlowId(1) });
    let mut all = vec![];
    for tag in [0_u8, 28, 29, 100, 255] {
        all.push((format!("operation {tag}"), vec![tag; 60]));
    }
    // Each operation without its fields; 27 has none.
    for tag in 1..=26_u8 {
        all.push((format!("operation {tag} without fields"), vec![tag]));
    }
    let whole = encoded(transmit());
    // Positions in the layout: header from 9, parts from 68, retransmission 92.
    let patched = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    all.extend([
        ("bytes after an operation".to_owned(), [&cancel[..], &[1]].concat()),
        ("half of an operation".to_owned(), cancel[..5].to_vec()),
        ("a header with its network header behind its end".to_owned(), patched(10, 200)),
        ("a header longer than the descriptor".to_owned(), patched(9, 255)),
        ("payload in a region".to_owned(), patched(71, 0)),
        ("payload longer than the descriptor".to_owned(), patched(75, 0xff)),
        ("a list longer than the descriptor".to_owned(), patched(68, 0xff)),
        ("a part of an unknown kind".to_owned(), patched(70, 9)),
        ("a boolean of 7".to_owned(), patched(92, 7)),
        ("a job of decompression".to_owned(), [&[26_u8][..], &[0; 60]].concat()),
        ("a list of 65,535 entries".to_owned(), vec![17, 0xff, 0xff, 0, 0]),
    ]);
    all
}

/// Returns a transmit that has a valid form.
fn transmit() -> Op {
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Host(Bytes::from_static(b"payload")));
    Op::Transmit(Transmit {
        flow: FlowId(1),
        header: PacketHeader::from_bytes(&[7; 54], 14, 34).expect("short"),
        segment_size: 1448,
        parts,
        timestamp: None,
        echo: Some(9),
        retransmission: true,
        quic: None,
    })
}

/// An abuse of a ring, with its name.
type RingAbuse = (&'static str, fn(&HostileProgram));

/// Returns the abuses of a ring.
fn abuses_of_rings() -> Vec<RingAbuse> {
    let longest = u32::try_from(DESCRIPTOR_BYTES_MAX).expect("below 4 GiB");
    assert_eq!(longest, 0x11_0000);
    vec![
        ("an index that is no multiple of eight", |program| program.publish(4)),
        ("an index behind the ring", |program| program.publish(CAPACITY + 8)),
        ("the largest index", |program| program.publish(!7)),
        ("an index that goes back", |program| {
            program.send_descriptor(&[27]);
            program.publish(8);
            program.publish(0);
            program.publish(u32::MAX - 7);
        }),
        ("a length of zero", |program| program.send(0, &[27, 0, 0, 0])),
        ("a length of 2 GiB", |program| program.send(1 << 31, &[27, 0, 0, 0])),
        ("a length beyond what was published", |program| program.send(100, &[27, 0, 0, 0])),
        ("a length beyond the longest descriptor", |program| {
            program.write(DATA_AT, &0x11_0001_u32.to_le_bytes());
            program.publish(0x11_0000 + 16);
        }),
        ("the index of the other side", |program| {
            // Written by the device only; it does not read it back.
            program.write(HEAD_AT, &0xffff_fff0_u32.to_le_bytes());
            program.send_descriptor(&[99]);
        }),
    ]
}

/// Requests are refused before there is a ring.
#[test]
fn requests_are_checked() {
    let fixture = DeviceFixture::start();
    let mut refused = 0;
    for (abuse, bytes) in abusive_requests() {
        say(&fixture.socket(), &bytes);
        refused += 1;
        fixture.wait_for("programs_refused", refused, &abuse);
    }
    // Descriptors that belong to no message, few and many.
    let file = tempfile::tempfile().expect("a file");
    for count in [1, 4] {
        let socket = AttachmentSocket::connect(&fixture.socket()).expect("the device listens");
        let request = encode_attach_request(&AttachRequest { root: None });
        socket.send(&request, &vec![file.as_fd(); count]).expect("it reads");
        let _refused = socket.receive(ATTACH_BYTES_MAX, LIMIT);
        refused += 1;
        fixture.wait_for("programs_refused", refused, "descriptors beside a request");
    }
    // A second program, while there is one.
    let first = HostileProgram::attach(&fixture.socket());
    say(&fixture.socket(), &message(&encode_attach_request(&AttachRequest { root: None })));
    fixture.wait_for("programs_refused", refused + 1, "a second program");
    drop(first);
    fixture.wait_for("programs_left", 1, "a program that leaves at once");
    fixture.expect_honest_service();
    fixture.device.stat().expect_zero(&["programs_expelled", "nic_internal_errors"]);
}

/// The first invalid index, length or descriptor ends the attachment.
#[test]
fn rings_and_descriptors_are_checked() {
    let fixture = DeviceFixture::start();
    let mut expelled = 0;
    let mut expect = |abuse: &str, program: HostileProgram| {
        expelled += 1;
        fixture.wait_for("programs_expelled", expelled, abuse);
        fixture.wait_for("programs_attached_now", 0, abuse);
        drop(program);
    };
    for (abuse, act) in abuses_of_rings() {
        let program = HostileProgram::attach(&fixture.socket());
        act(&program);
        expect(abuse, program);
    }
    for (abuse, bytes) in abusive_descriptors() {
        let program = HostileProgram::attach(&fixture.socket());
        program.send_descriptor(&bytes);
        expect(&abuse, program);
    }
    fixture.expect_honest_service();
    fixture.device.stat().expect_zero(&["nic_internal_errors", "carrier_internal_errors"]);
}

/// A program that rings without pause, one that changes descriptors while they are read, and one
/// that sends valid operations without sense: the device continues.
#[test]
fn storms_end_with_their_program() {
    let fixture = DeviceFixture::start();
    let program = HostileProgram::attach(&fixture.socket());
    for _ in 0..200_000 {
        program.ring();
    }
    program.send_descriptor(&[27]);
    drop(program);
    fixture.wait_for("programs_left", 1, "a storm of doorbells");
    let program = HostileProgram::attach(&fixture.socket());
    let mut bytes = vec![];
    let mut memory = InlineMemory { pool: PacketPool::new(1), patterns: vec![] };
    encode_op(transmit(), &mut memory, &mut bytes).expect("it has a layout");
    thread::scope(|scope| {
        let (program, bytes) = (&program, &bytes);
        scope.spawn(move || {
            for round in 0..20_000_u32 {
                let at = DATA_AT + 4 + u64::from(round) % bytes.len() as u64;
                program.write(at, &round.to_le_bytes()[..1]);
            }
        });
        for _ in 0..2_000 {
            program.send_descriptor(bytes);
        }
    });
    drop(program);
    fixture.wait_for("programs_left", 2, "descriptors that change");
    // A frame that is no IP packet: a program may send any frame on its link.
    let sent = fixture.device.stat().get("tx_packets");
    let program = HostileProgram::attach(&fixture.socket());
    program.send_descriptor(&bytes);
    fixture.wait_for("tx_packets", sent + 1, "a frame that is no packet");
    drop(program);
    fixture.wait_for("programs_left", 3, "a program without sense");
    fixture.expect_honest_service();
    fixture.device.stat().expect_zero(&["nic_internal_errors", "carrier_internal_errors"]);
}
