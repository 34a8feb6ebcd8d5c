//! `outboard nvme nbd`: a namespace as a block device for programs of this machine.
//!
//! Each NBD client has its own threads ([`super::nbd`]). Requests go to the session's initiator;
//! another thread takes their completions and answers them. A request longer than the controller's
//! limit is split into several commands, and ends with the last of them. The number of clients is
//! bounded ([`NbdClientLimit`]). The service ends at a signal, or when the controller is lost for
//! good.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use apps::nvme::initiator::{InitiatorNamespace, NvmeRequest, NvmeRequestDone, NvmeRequestError};
use bytes::Bytes;
use serde_json::json;
use stack::listener::ListenerThread;
use stack::spawn;
use wire::nvme::status::NvmeStatus;

use super::args::NbdArgs;
use super::handle::{CompletionSender, InitiatorHandle};
use super::nbd::{self, NbdErrno, NbdExport, NbdOperation};
use super::pipe::buffer;
use super::session::InitiatorSession;
use cli::Failure;

/// Maximum number of clients at a time, each with three threads. Linux opens at most one connection
/// per core, other clients a few.
const CLIENTS_MAX: usize = 64;

/// Counts clients by references: one here, and one held by each client.
#[derive(Default)]
struct NbdClientLimit(Arc<()>);

impl NbdClientLimit {
    /// Returns a reference that the client holds until it ends; `None` if there are too many.
    fn take(&self) -> Option<Arc<()>> {
        let free = Arc::strong_count(&self.0) <= CLIENTS_MAX;
        free.then(|| Arc::clone(&self.0))
    }
}

/// A client's request, with the state of its commands.
struct NbdOpenRequest {
    request: nbd::NbdRequest,
    /// Commands that have not ended.
    left: usize,
    /// Data of a read, filled by its commands.
    data: Vec<u8>,
    failed: Option<NbdErrno>,
}

/// The requests of a client.
struct NbdClient {
    handle: InitiatorHandle,
    namespace: InitiatorNamespace,
    data_bytes_max: u64,
    open: Mutex<BTreeMap<u64, NbdOpenRequest>>,
    replies: Sender<Option<NvmeRequestDone>>,
}

/// Runs `outboard nvme nbd`.
///
/// # Errors
/// Fails if the address cannot be bound or the target cannot be connected.
pub(super) fn run(args: &NbdArgs) -> Result<(), Failure> {
    let taken = |error: io::Error| {
        Failure::Unavailable(format!(
            "cannot listen on {}: {error}; choose another address with --listen",
            args.listen
        ))
    };
    let listener = TcpListener::bind(args.listen).map_err(taken)?;
    let at = listener.local_addr().map_err(taken)?;
    let session = InitiatorSession::connect(&args.subsystem)?;
    let namespace = session.namespace(args.nsid)?;
    let read_only = namespace.write_protected;
    let export = NbdExport {
        name: args.export.clone(),
        size: namespace.blocks << namespace.shift,
        block_bytes: 1 << namespace.shift,
        read_only,
    };
    let (handle, most) = (session.handle(), session.data_bytes_max);
    let seats = NbdClientLimit::default();
    let _listener = ListenerThread::start("nbd", "NBD clients", listener, move |stream| {
        let Some(seat) = seats.take() else { return };
        let (export, handle) = (export.clone(), handle.clone());
        let client = move || {
            serve(&export, stream, handle, namespace, most);
            drop(seat);
        };
        // If no thread can be started, the client's connection is closed.
        drop(spawn("nbd-client".to_owned(), client));
    })?;
    let uri = format!("nbd://{at}/{}", args.export);
    if args.subsystem.connect.json {
        println!("{}", json!({ "nsid": args.nsid, "uri": uri, "read_only": read_only }));
    } else {
        let only = if read_only { ", read-only" } else { "" };
        println!("serving namespace {} as {uri}{only}", args.nsid);
    }
    drop(io::stdout().flush());
    session.wait_for_signal()?;
    session.end()
}

/// Serves a client until its connection ends.
fn serve(
    export: &NbdExport,
    stream: TcpStream,
    handle: InitiatorHandle,
    namespace: InitiatorNamespace,
    data_bytes_max: u64,
) {
    let (replies, done) = channel();
    let open = Mutex::new(BTreeMap::new());
    let client = Arc::new(NbdClient { handle, namespace, data_bytes_max, open, replies });
    let answering = Arc::clone(&client);
    let Ok(answers) = spawn("nbd-answers".to_owned(), move || answering.answer(&done)) else {
        return;
    };
    // Small replies must not wait for acknowledgments (Nagle).
    let result = stream.set_nodelay(true).and_then(|()| stream.try_clone()).and_then(|output| {
        let mut number = 0_u32;
        nbd::serve(export, stream, output, &mut |request| {
            client.submit_commands(number, request);
            // Numbers wrap around, but the few open requests have different ones.
            number = number.wrapping_add(1);
        })
    });
    if let Err(error) = result {
        eprintln!("outboard: NBD client: {error}");
    }
    client.end();
    drop(answers.join());
}

/// Low bits of a command's token, which number the commands of a request; the request's number is
/// above. A request of 4 GiB has fewer commands than this, even with one per block.
const COMMANDS_BITS: u32 = 32;
/// Token sent by [`NbdClient::end`]. No request has that many commands.
const END_TOKEN: u64 = u64::MAX;

impl NbdClient {
    /// Submits the commands of a request.
    fn submit_commands(&self, number: u32, mut request: nbd::NbdRequest) {
        let number = u64::from(number);
        let shift = self.namespace.shift;
        let (commands, bytes) = commands(&mut request, shift, self.data_bytes_max);
        let left = commands.len();
        let open = NbdOpenRequest { request, left, data: vec![0; bytes], failed: None };
        self.lock().insert(number, open);
        for (index, (command, bytes)) in (0..).zip(commands) {
            let token = number << COMMANDS_BITS | index;
            let buffer = (bytes > 0).then(|| buffer(bytes));
            let reply = CompletionSender::new(token, self.replies.clone());
            self.handle.submit(self.namespace.nsid, command, buffer, reply);
        }
    }

    /// Answers requests whose commands have ended, until [`NbdClient::end`] was called and none is
    /// open.
    fn answer(&self, done: &Receiver<Option<NvmeRequestDone>>) {
        let mut ending = false;
        while !(ending && self.lock().is_empty()) {
            // `None`: the host thread has ended, and the program will.
            let Ok(Some(done)) = done.recv() else { return };
            if done.token == END_TOKEN {
                ending = true;
                continue;
            }
            let mut all = self.lock();
            let number = done.token >> COMMANDS_BITS;
            let Some(open) = all.get_mut(&number) else { continue };
            open.record_completion(&done, self.data_bytes_max);
            if open.left == 0 {
                if let Some(NbdOpenRequest { request, data, failed, .. }) = all.remove(&number) {
                    request.answer(failed.map_or(Ok(data), Err));
                }
            }
        }
    }

    /// Announces that no more requests follow.
    fn end(&self) {
        let _gone = self.replies.send(Some(NvmeRequestDone {
            token: END_TOKEN,
            result: Ok(0),
            buffer: None,
        }));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, NbdOpenRequest>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NbdOpenRequest {
    /// Records the completion of a command.
    fn record_completion(&mut self, done: &NvmeRequestDone, data_bytes_max: u64) {
        self.left -= 1;
        if let Err(error) = done.result {
            self.failed = Some(errno(error));
            return;
        }
        let Some(buffer) = &done.buffer else { return };
        let index = done.token & ((1 << COMMANDS_BITS) - 1);
        let from = usize::try_from(index * data_bytes_max).unwrap_or(usize::MAX);
        let Some(place) = self.data.get_mut(from..) else { return };
        let len = place.len().min(usize::try_from(data_bytes_max).unwrap_or(usize::MAX));
        if let (Some(place), Some(data)) = (place.get_mut(..len), buffer.as_slice().get(..len)) {
            place.copy_from_slice(data);
        }
    }
}

/// Returns the commands of a request, each with the bytes that it reads, and the sum of these.
fn commands(
    request: &mut nbd::NbdRequest,
    shift: u8,
    most: u64,
) -> (Vec<(NvmeRequest, usize)>, usize) {
    let offset = request.offset;
    let lba = |at: u64| (offset + at) >> shift;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
    let blocks = |len: u64| u32::try_from(len >> shift).unwrap_or(u32::MAX);
    let is_trim = matches!(request.operation, NbdOperation::Trim { .. });
    match &mut request.operation {
        NbdOperation::Flush => (vec![(NvmeRequest::Flush, 0)], 0),
        NbdOperation::Read(len) => {
            let read =
                |(at, len)| (NvmeRequest::Read { lba: lba(at), blocks: blocks(len) }, size(len));
            (split_length((*len).into(), most).map(read).collect(), *len as usize)
        }
        NbdOperation::Write { data, fua } => {
            let data = Bytes::from(std::mem::take(data));
            let write = |(at, len)| {
                let data = data.slice(size(at)..size(at + len));
                (NvmeRequest::Write { lba: lba(at), data, fua: *fua }, 0)
            };
            (split_length(data.len() as u64, most).map(write).collect(), 0)
        }
        NbdOperation::Trim { len, fua: false } => {
            let ranges = vec![(lba(0), blocks((*len).into()))];
            (vec![(NvmeRequest::Deallocate { ranges }, 0)], 0)
        }
        NbdOperation::Zero { len, fua } | NbdOperation::Trim { len, fua } => {
            // A deallocation cannot be forced to the medium (FUA); a Write Zeroes command can, and
            // may deallocate.
            let (deallocate, fua) = (is_trim, *fua);
            // At most 65,536 blocks (NLB has 16 bits), and no more bytes than a command may
            // transfer.
            let zero = |(at, len)| {
                (NvmeRequest::WriteZeroes { lba: lba(at), blocks: blocks(len), deallocate, fua }, 0)
            };
            (split_length((*len).into(), most.min(1 << 16 << shift)).map(zero).collect(), 0)
        }
    }
}

/// Splits a length into pieces of at most `most`; yields offset and length of each.
fn split_length(len: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let most = most.max(1);
    (0..len.div_ceil(most)).map(move |index| (index * most, most.min(len - index * most)))
}

/// Converts an error to NBD's error number, ignoring whether a retry may help.
const fn errno(error: NvmeRequestError) -> NbdErrno {
    let error = match error {
        NvmeRequestError::Status(status) => NvmeRequestError::Status(status.code()),
        other => other,
    };
    match error {
        NvmeRequestError::Status(NvmeStatus::CAPACITY_EXCEEDED | NvmeStatus::LBA_OUT_OF_RANGE)
        | NvmeRequestError::OutOfRange => NbdErrno::NoSpace,
        NvmeRequestError::BadLength | NvmeRequestError::NotSupported => NbdErrno::Invalid,
        _ => NbdErrno::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::tests::{complete, detached_handle};
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let full = NvmeRequestError::Status(NvmeStatus::CAPACITY_EXCEEDED.do_not_retry());
        assert_eq!(errno(full), NbdErrno::NoSpace);
        assert_eq!(errno(NvmeRequestError::Status(NvmeStatus::INTERNAL)), NbdErrno::Io);
    }

    #[test]
    fn clients_are_bounded() {
        let seats = NbdClientLimit::default();
        let mut taken: Vec<_> = (0..CLIENTS_MAX).map(|_| seats.take().unwrap()).collect();
        assert!(seats.take().is_none());
        taken.pop();
        assert!(seats.take().is_some());
    }

    #[test]
    fn a_trim_that_is_to_last_is_zeros_that_are_forced() {
        let asked = |fua| {
            let (mut request, _) = nbd::tests::request(NbdOperation::Trim { len: 1024, fua });
            commands(&mut request, 9, 512).0
        };
        let plain = asked(false);
        assert!(
            matches!(&plain[..], [(NvmeRequest::Deallocate { ranges }, 0)] if *ranges == [(0, 2)])
        );
        let forced = NvmeRequest::WriteZeroes { lba: 1, blocks: 1, deallocate: true, fua: true };
        let all = asked(true);
        assert_eq!(all.len(), 2);
        assert_eq!(format!("{:?}", all[1].0), format!("{forced:?}"));
    }

    #[test]
    fn a_request_of_many_commands_ends_with_the_last_of_them() {
        // A controller that takes 4 KiB at a time: 131,072 commands, twice.
        let (handle, orders) = detached_handle();
        let (replies, done) = channel();
        let namespace = InitiatorNamespace {
            nsid: 1,
            blocks: 1 << 30,
            shift: 9,
            nguid: [0; 16],
            eui64: [0; 8],
            uuid: [0; 16],
            write_protected: false,
        };
        let open = Mutex::default();
        let client = NbdClient { handle, namespace, data_bytes_max: 4096, open, replies };
        let mut answers = Vec::new();
        for number in [u32::MAX, 0] {
            let (request, answer) =
                nbd::tests::request(NbdOperation::Zero { len: 512 << 20, fua: false });
            client.submit_commands(number, request);
            answers.push(answer);
        }
        let orders: Vec<_> = orders.collect();
        assert_eq!(orders.len(), 2 << 17);
        let last = [(1 << 17) - 1, (2 << 17) - 1];
        let mut kept = Vec::new();
        for (index, order) in orders.into_iter().enumerate() {
            if last.contains(&index) { kept.push(order) } else { complete(order) }
        }
        // The `None` ends `answer` after it has handled all completions so far.
        client.replies.send(None).unwrap();
        client.answer(&done);
        assert!(answers.iter().all(|answer| answer.try_recv().is_err()));
        kept.into_iter().for_each(complete);
        client.replies.send(None).unwrap();
        client.answer(&done);
        assert!(answers.iter().all(|answer| answer.try_recv().is_ok()));
    }
}
