//! Server side of NBD (Network Block Device protocol: nbd.git, doc/proto.md): fixed newstyle
//! negotiation, simple replies, one export.
//!
//! Called by `outboard nvme nbd`, with two threads per client: one reads requests, one writes
//! replies, in order of completion. Executing a request is the caller's task. Clients are not
//! trusted: lengths are bounded, and a request that is not understood ends the connection or is
//! refused as the protocol prescribes.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Largest request in bytes: the default of clients (doc/proto.md, "Block size constraints").
pub(crate) const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Maximum number of requests of a client in flight. Further ones wait in its socket.
const REQUESTS_MAX: usize = 128;
/// Largest option in bytes: a name of 4096 bytes and its surroundings.
const OPTION_BYTES_MAX: u32 = 8192;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags: fixed newstyle, no zeros after an export's size.
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;

/// Transmission flags: HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
/// CAN_MULTI_CONN.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
/// Transmission flags of a read-only export: HAS_FLAGS, READ_ONLY, SEND_FLUSH, CAN_MULTI_CONN.
const TRANSMISSION_FLAGS_READ_ONLY: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 8;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
const REP_ERR_INVALID: u32 = 1 << 31 | 3;
const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;

const CMD_FLAG_FUA: u16 = 1;

/// Error of a request, with the protocol's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum NbdErrno {
    /// Write to a read-only export.
    NotPermitted = 1,
    /// The storage or the connection to it failed.
    Io = 5,
    /// Invalid request.
    Invalid = 22,
    /// Beyond the end, or no space left.
    NoSpace = 28,
}

/// Operation of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NbdOperation {
    /// Reads this many bytes.
    Read(u32),
    /// Writes bytes.
    Write {
        /// The bytes.
        data: Vec<u8>,
        /// True if they must be on the medium before the reply (force unit access).
        fua: bool,
    },
    /// Flushes all completed writes to the medium.
    Flush,
    /// Discards bytes, which are no longer needed.
    Trim {
        /// Number of bytes.
        len: u32,
        /// True if it must be on the medium before the reply.
        fua: bool,
    },
    /// Zeroes bytes.
    Zero {
        /// Number of bytes.
        len: u32,
        /// True if they must be on the medium before the reply.
        fua: bool,
    },
}

/// A request, with the channel for its reply.
#[derive(Debug)]
pub(crate) struct NbdRequest {
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// The operation.
    pub(crate) operation: NbdOperation,
    handle: u64,
    replies: Sender<NbdReply>,
    /// Held until the reply is written, to bound the client's requests in flight.
    _permit: NbdRequestPermit,
}

/// The reply to a request.
struct NbdReply {
    handle: u64,
    result: Result<Vec<u8>, NbdErrno>,
    _permit: NbdRequestPermit,
}

/// Counting semaphore for a client's requests.
#[derive(Debug)]
struct NbdRequestLimit {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A unit of the semaphore, released when it is dropped.
#[derive(Debug)]
struct NbdRequestPermit(Arc<NbdRequestLimit>);

impl NbdRequestPermit {
    /// Waits for a unit.
    fn acquire(places: &Arc<NbdRequestLimit>) -> Self {
        let mut free = places.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = places.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Self(Arc::clone(places))
    }
}

impl Drop for NbdRequestPermit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

impl NbdRequest {
    /// Answers the request: a read with its bytes, others with none.
    pub(crate) fn answer(self, result: Result<Vec<u8>, NbdErrno>) {
        let Self { handle, replies, _permit: _turn, .. } = self;
        // An error means that the client is gone.
        let _gone = replies.send(NbdReply { handle, result, _permit: _turn });
    }
}

/// Properties of an export.
#[derive(Clone, Debug)]
pub(crate) struct NbdExport {
    /// Name. It is also the default, for clients that send no name.
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Smallest unit of reads and writes in bytes, a power of two.
    pub(crate) block_bytes: u32,
    /// True if it cannot be written.
    pub(crate) read_only: bool,
}

impl NbdExport {
    const fn flags(&self) -> u16 {
        if self.read_only { TRANSMISSION_FLAGS_READ_ONLY } else { TRANSMISSION_FLAGS }
    }
}

/// Serves a client until its connection ends. `operation` takes its requests, and may answer them
/// in any order.
///
/// # Errors
/// Fails if the connection breaks, or if the client violates the protocol.
pub(crate) fn serve(
    export: &NbdExport,
    input: impl Read,
    mut output: impl Write + Send + 'static,
    work: &mut dyn FnMut(NbdRequest),
) -> io::Result<()> {
    let mut input = BufReader::new(input);
    if !negotiate(export, &mut input, &mut output)? {
        return Ok(());
    }
    let (replies, answered) = channel();
    let writer = std::thread::Builder::new()
        .name("nbd".to_owned())
        .spawn(move || write_replies(BufWriter::new(output), &answered))?;
    let result = transmit(export, &mut input, &replies, work);
    drop(replies);
    let wrote = writer.join().unwrap_or_else(|_| Err(io::Error::other("reply thread panicked")));
    result.and(wrote)
}

fn write_replies(mut output: impl Write, answered: &Receiver<NbdReply>) -> io::Result<()> {
    while let Ok(mut reply) = answered.recv() {
        loop {
            let error = reply.result.as_ref().err().map_or(0, |&errno| errno as u32);
            output.write_all(&REPLY_MAGIC.to_be_bytes())?;
            output.write_all(&error.to_be_bytes())?;
            output.write_all(&reply.handle.to_be_bytes())?;
            if let Ok(data) = &reply.result {
                output.write_all(data)?;
            }
            let Ok(next) = answered.try_recv() else { break };
            reply = next;
        }
        output.flush()?;
    }
    Ok(())
}

fn read<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    read(input).map(u32::from_be_bytes)
}

fn protocol_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Negotiates the export; returns whether requests follow.
fn negotiate(
    export: &NbdExport,
    input: &mut impl Read,
    output: &mut impl Write,
) -> io::Result<bool> {
    let flags = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    let mut hello = [MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    hello.extend_from_slice(&flags.to_be_bytes());
    output.write_all(&hello)?;
    output.flush()?;
    let client = read_u32(input)?;
    if client & !u32::from(flags) != 0 {
        return Err(protocol_error("unknown client flags"));
    }
    let zeroes = client & u32::from(FLAG_NO_ZEROES) == 0;
    loop {
        if u64::from_be_bytes(read(input)?) != OPTION_MAGIC {
            return Err(protocol_error("bad option magic"));
        }
        let (option, len) = (read_u32(input)?, read_u32(input)?);
        if len > OPTION_BYTES_MAX {
            return Err(protocol_error("option too long"));
        }
        let mut data = vec![0; len as usize];
        input.read_exact(&mut data)?;
        match option {
            OPT_EXPORT_NAME => {
                // This option cannot be refused except by closing the connection.
                if !is_export_name(export, &data) {
                    return Err(protocol_error("no such export"));
                }
                output.write_all(&export.size.to_be_bytes())?;
                output.write_all(&export.flags().to_be_bytes())?;
                if zeroes {
                    output.write_all(&[0; 124])?;
                }
                output.flush()?;
                return Ok(true);
            }
            OPT_ABORT => {
                reply(output, option, REP_ACK, &[])?;
                return Ok(false);
            }
            OPT_LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                let len = u32::try_from(name.len()).unwrap_or(0).to_be_bytes();
                reply(output, option, REP_SERVER, &[&len, name].concat())?;
                reply(output, option, REP_ACK, &[])?;
            }
            OPT_LIST => reply(output, option, REP_ERR_INVALID, &[])?,
            OPT_INFO | OPT_GO => {
                let found = describe(export, option, &data, output)?;
                if found && option == OPT_GO {
                    return Ok(true);
                }
            }
            _ => reply(output, option, REP_ERR_UNSUP, &[])?,
        }
    }
}

/// Returns whether a name means this export, which is the only one, and the default.
fn is_export_name(export: &NbdExport, name: &[u8]) -> bool {
    name.is_empty() || name == export.name.as_bytes()
}

/// Answers NBD_OPT_INFO or NBD_OPT_GO; returns whether the export exists.
fn describe(
    export: &NbdExport,
    option: u32,
    data: &[u8],
    output: &mut impl Write,
) -> io::Result<bool> {
    let len = data.first_chunk().map(|len| u32::from_be_bytes(*len) as usize);
    let name = len.and_then(|len| data.get(4..len.checked_add(4)?));
    // After the name follow the requested kinds of information, which are ignored: the same ones
    // are always sent.
    let counted = name.and_then(|name| {
        let rest = &data[4 + name.len()..];
        let count = rest.first_chunk().map(|count| usize::from(u16::from_be_bytes(*count)))?;
        (rest.len() == 2 + 2 * count).then_some(())
    });
    let (Some(name), Some(())) = (name, counted) else {
        reply(output, option, REP_ERR_INVALID, &[])?;
        return Ok(false);
    };
    if !is_export_name(export, name) {
        reply(output, option, REP_ERR_UNKNOWN, &[])?;
        return Ok(false);
    }
    let mut info = INFO_EXPORT.to_be_bytes().to_vec();
    info.extend_from_slice(&export.size.to_be_bytes());
    info.extend_from_slice(&export.flags().to_be_bytes());
    reply(output, option, REP_INFO, &info)?;
    let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [export.block_bytes, export.block_bytes.max(4096), REQUEST_BYTES_MAX] {
        info.extend_from_slice(&size.to_be_bytes());
    }
    reply(output, option, REP_INFO, &info)?;
    reply(output, option, REP_ACK, &[])?;
    Ok(true)
}

fn reply(output: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    let len = u32::try_from(data.len()).unwrap_or(0);
    for word in [option, kind, len] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(data);
    output.write_all(&bytes)?;
    output.flush()
}

/// Reads requests until the client ends.
fn transmit(
    export: &NbdExport,
    input: &mut impl Read,
    replies: &Sender<NbdReply>,
    work: &mut dyn FnMut(NbdRequest),
) -> io::Result<()> {
    let places =
        Arc::new(NbdRequestLimit { free: Mutex::new(REQUESTS_MAX), freed: Condvar::new() });
    loop {
        let magic = match read_u32(input) {
            Ok(magic) => magic,
            // Closing without NBD_CMD_DISC is not an error.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        if magic != REQUEST_MAGIC {
            return Err(protocol_error("bad request magic"));
        }
        let [flags, command] = [read(input)?, read(input)?].map(u16::from_be_bytes);
        let handle = u64::from_be_bytes(read(input)?);
        let (offset, len) = (u64::from_be_bytes(read(input)?), read_u32(input)?);
        if command == CMD_DISC {
            return Ok(());
        }
        let mut data = Vec::new();
        if command == CMD_WRITE {
            if len > REQUEST_BYTES_MAX {
                return Err(protocol_error("write request too long"));
            }
            data.resize(len as usize, 0);
            input.read_exact(&mut data)?;
        }
        let turn = NbdRequestPermit::acquire(&places);
        let request = validate_request(export, (command, flags), offset, len, data);
        match request {
            Ok(what) => work(NbdRequest {
                offset,
                operation: what,
                handle,
                replies: replies.clone(),
                _permit: turn,
            }),
            Err(errno) => {
                let _gone = replies.send(NbdReply { handle, result: Err(errno), _permit: turn });
            }
        }
    }
}

/// Validates a request.
fn validate_request(
    export: &NbdExport,
    (command, flags): (u16, u16),
    offset: u64,
    len: u32,
    data: Vec<u8>,
) -> Result<NbdOperation, NbdErrno> {
    let fua = flags & CMD_FLAG_FUA != 0;
    let inside = offset.checked_add(len.into()).is_some_and(|end| end <= export.size);
    let block = u64::from(export.block_bytes.max(1));
    let aligned = offset % block == 0 && u64::from(len) % block == 0;
    let range = || match (inside, aligned && len > 0) {
        (false, _) => Err(NbdErrno::NoSpace),
        (true, false) => Err(NbdErrno::Invalid),
        (true, true) => Ok(()),
    };
    match command {
        CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES if export.read_only => Err(NbdErrno::NotPermitted),
        CMD_READ if len > REQUEST_BYTES_MAX => Err(NbdErrno::Invalid),
        CMD_READ => range().map(|()| NbdOperation::Read(len)),
        CMD_WRITE => range().map(|()| NbdOperation::Write { data, fua }),
        CMD_FLUSH => Ok(NbdOperation::Flush),
        CMD_TRIM => range().map(|()| NbdOperation::Trim { len, fua }),
        CMD_WRITE_ZEROES => range().map(|()| NbdOperation::Zero { len, fua }),
        _ => Err(NbdErrno::Invalid),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Returns a request, with the channel that receives its reply.
    pub(in super::super) fn request(work: NbdOperation) -> (NbdRequest, Receiver<impl Sized>) {
        let places = Arc::new(NbdRequestLimit { free: Mutex::new(1), freed: Condvar::new() });
        let (replies, answer) = channel();
        (
            NbdRequest {
                offset: 0,
                operation: work,
                handle: 7,
                replies,
                _permit: NbdRequestPermit::acquire(&places),
            },
            answer,
        )
    }

    fn export() -> NbdExport {
        NbdExport { name: "disk".to_owned(), size: 1 << 20, block_bytes: 512, read_only: false }
    }

    /// Starts a server with a disk in memory; returns the client's end of its connection.
    fn start() -> (TcpStream, std::thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let thread = std::thread::spawn(move || {
            let mut disk = vec![0; 1 << 20];
            let output = server.try_clone().unwrap();
            serve(&export(), server, output, &mut |request| {
                let at = usize::try_from(request.offset).unwrap();
                let result = match &request.operation {
                    NbdOperation::Read(len) => Ok(disk[at..at + *len as usize].to_vec()),
                    NbdOperation::Write { data, .. } => {
                        disk[at..at + data.len()].copy_from_slice(data);
                        Ok(Vec::new())
                    }
                    NbdOperation::Trim { len, .. } | NbdOperation::Zero { len, .. } => {
                        disk[at..at + *len as usize].fill(0);
                        Ok(Vec::new())
                    }
                    NbdOperation::Flush => Ok(Vec::new()),
                };
                request.answer(result);
            })
        });
        (client, thread)
    }

    fn hello(client: &mut TcpStream) {
        assert_eq!(read::<18>(client).unwrap()[..8], MAGIC.to_be_bytes());
        client.write_all(&3_u32.to_be_bytes()).unwrap();
    }

    fn option(client: &mut TcpStream, option: u32, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()];
        client.write_all(&[&head.concat()[..], data].concat()).unwrap();
    }

    fn answer(client: &mut TcpStream) -> (u32, Vec<u8>) {
        assert_eq!(read::<8>(client).unwrap(), OPTION_REPLY_MAGIC.to_be_bytes());
        let [_, kind, len] = [(); 3].map(|()| read_u32(client).unwrap());
        let mut data = vec![0; len as usize];
        client.read_exact(&mut data).unwrap();
        (kind, data)
    }

    fn go(client: &mut TcpStream) {
        hello(client);
        option(client, OPT_GO, &[0, 0, 0, 0, 0, 0]);
        let (kind, info) = answer(client);
        assert_eq!((kind, info.len()), (REP_INFO, 12));
        assert_eq!(info[2..10], (1_u64 << 20).to_be_bytes());
        assert_eq!(answer(client).0, REP_INFO);
        assert_eq!(answer(client).0, REP_ACK);
    }

    fn ask(client: &mut TcpStream, command: u16, offset: u64, len: u32, data: &[u8]) {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&7_u64.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(data);
        client.write_all(&bytes).unwrap();
    }

    fn result(client: &mut TcpStream) -> u32 {
        assert_eq!(read_u32(client).unwrap(), REPLY_MAGIC);
        let error = read_u32(client).unwrap();
        assert_eq!(u64::from_be_bytes(read(client).unwrap()), 7);
        error
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut client, thread) = start();
        go(&mut client);
        ask(&mut client, CMD_WRITE, 4096, 1024, &[9; 1024]);
        assert_eq!(result(&mut client), 0);
        ask(&mut client, CMD_READ, 4096 + 512, 1024, &[]);
        assert_eq!(result(&mut client), 0);
        let data: [u8; 1024] = read(&mut client).unwrap();
        assert_eq!((&data[..512], &data[512..]), (&[9; 512][..], &[0; 512][..]));
        for command in [CMD_FLUSH, CMD_TRIM, CMD_WRITE_ZEROES] {
            let len = if command == CMD_FLUSH { 0 } else { 512 };
            ask(&mut client, command, 0, len, &[]);
            assert_eq!(result(&mut client), 0);
        }
        ask(&mut client, CMD_DISC, 0, 0, &[]);
        assert!(thread.join().unwrap().is_ok());
    }

    #[test]
    fn a_read_only_export_refuses_changes() {
        let export = NbdExport { read_only: true, ..export() };
        assert_eq!(export.flags() & 1 << 1, 1 << 1);
        let ask = |command| validate_request(&export, (command, 0), 0, 512, vec![0; 512]);
        for command in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
            assert_eq!(ask(command), Err(NbdErrno::NotPermitted));
        }
        assert_eq!(ask(CMD_READ), Ok(NbdOperation::Read(512)));
        assert_eq!(ask(CMD_FLUSH), Ok(NbdOperation::Flush));
    }

    #[test]
    fn invalid_requests_are_refused_and_the_connection_stays() {
        let (mut client, thread) = start();
        go(&mut client);
        let wrong = [
            (CMD_READ, 1 << 20, 512, 28),
            (CMD_READ, u64::MAX, 512, 28),
            (CMD_READ, 1, 512, 22),
            (CMD_READ, 0, 0, 22),
            (CMD_READ, 0, u32::MAX, 22),
            (9, 0, 512, 22),
        ];
        for (command, offset, len, error) in wrong {
            ask(&mut client, command, offset, len, &[]);
            assert_eq!(result(&mut client), error, "{command} {offset} {len}");
        }
        ask(&mut client, CMD_READ, 0, 512, &[]);
        assert_eq!(result(&mut client), 0);
        let _data: [u8; 512] = read(&mut client).unwrap();
        drop(client);
        assert!(thread.join().unwrap().is_ok());
    }

    #[test]
    fn options() {
        let (mut client, thread) = start();
        hello(&mut client);
        option(&mut client, OPT_LIST, &[]);
        assert_eq!(answer(&mut client), (REP_SERVER, b"\0\0\0\x04disk".to_vec()));
        assert_eq!(answer(&mut client).0, REP_ACK);
        option(&mut client, 99, b"whatever");
        assert_eq!(answer(&mut client).0, REP_ERR_UNSUP);
        option(&mut client, OPT_INFO, b"\0\0\0\x05other\0\0");
        assert_eq!(answer(&mut client).0, REP_ERR_UNKNOWN);
        option(&mut client, OPT_INFO, b"\xff\0\0\x05other");
        assert_eq!(answer(&mut client).0, REP_ERR_INVALID);
        option(&mut client, OPT_ABORT, &[]);
        assert_eq!(answer(&mut client).0, REP_ACK);
        assert!(thread.join().unwrap().is_ok());
    }

    #[test]
    fn protocol_violations_close_the_connection() {
        let (mut client, thread) = start();
        hello(&mut client);
        client.write_all(&[0; 16]).unwrap();
        assert!(thread.join().unwrap().is_err());
        let (mut client, thread) = start();
        hello(&mut client);
        option(&mut client, OPT_EXPORT_NAME, b"other");
        assert!(thread.join().unwrap().is_err());
        let (mut client, thread) = start();
        go(&mut client);
        ask(&mut client, CMD_WRITE, 0, REQUEST_BYTES_MAX + 1, &[]);
        assert!(thread.join().unwrap().is_err());
    }
}
