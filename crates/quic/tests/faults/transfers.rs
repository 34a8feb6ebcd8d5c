//! An application on both machines: the client requests files and sends files, each on its own
//! stream, and all bytes are compared.

use std::collections::BTreeMap;

use abi::FileId;
use bytes::Bytes;
use outboard_quic::{Dir, Priority, QuicEvent, QuicHandle, StreamEvent, StreamId, StreamReadError};

use crate::topology::{QuicFaultNetwork, QuicMachine, file_byte};

/// Transfer of the first `len` bytes of a file to the client, or to the server (`up`).
pub(crate) struct FileTransfer {
    up: bool,
    file: &'static str,
    len: u64,
    stream: Option<StreamId>,
    pub(crate) received: Vec<u8>,
    pub(crate) ended: Option<StreamReadError>,
}

/// The transfers of one connection.
pub(crate) struct FileTransfers {
    pub(crate) client: QuicHandle,
    pub(crate) server: Option<QuicHandle>,
    pub(crate) all: Vec<FileTransfer>,
    /// Reason for the end of the connection at the client and at the server.
    pub(crate) lost: [Option<String>; 2],
    /// Requests of which the server has read a part.
    requests: BTreeMap<StreamId, Vec<u8>>,
    files: BTreeMap<(bool, &'static str), FileId>,
    /// Priority of responses that the server starts from now on.
    pub(crate) priority: Priority,
}

pub(crate) fn down(file: &'static str, len: u64) -> FileTransfer {
    FileTransfer { up: false, file, len, stream: None, received: Vec::new(), ended: None }
}

pub(crate) fn up(file: &'static str, len: u64) -> FileTransfer {
    FileTransfer { up: true, ..down(file, len) }
}

/// Length of a request: the index of the transfer.
const REQUEST_BYTES: usize = 1;

impl FileTransfers {
    pub(crate) fn begin(lab: &mut QuicFaultNetwork, all: Vec<FileTransfer>) -> Self {
        let mut files = BTreeMap::new();
        for transfer in &all {
            let machine = if transfer.up { &mut lab.client } else { &mut lab.server };
            let open = || machine.host().offload_open(transfer.file).expect("there is room");
            files.entry((transfer.up, transfer.file)).or_insert_with(open);
        }
        let client = lab.connect();
        let (server, lost, requests) = (None, [None, None], BTreeMap::new());
        let priority = Priority::default();
        Self { client, server, all, lost, requests, files, priority }
    }

    /// Requests one more file; returns the index of its transfer.
    pub(crate) fn ask_for(
        &mut self,
        lab: &mut QuicFaultNetwork,
        mut transfer: FileTransfer,
    ) -> usize {
        let file = lab.server.host().offload_open(transfer.file).expect("there is room");
        self.files.insert((false, transfer.file), file);
        let endpoint = &mut lab.client.app;
        let number = self.all.len();
        let stream = endpoint.open_stream(self.client, Dir::Bi).expect("allowed");
        let bytes = [u8::try_from(number).expect("few transfers")];
        endpoint.write(self.client, stream, Bytes::copy_from_slice(&bytes));
        endpoint.finish(self.client, stream);
        transfer.stream = Some(stream);
        self.all.push(transfer);
        number
    }

    /// Handles events; returns true when every transfer has ended.
    pub(crate) fn step(&mut self, lab: &mut QuicFaultNetwork) -> bool {
        while let Some(event) = lab.client.app.poll_event() {
            match event {
                QuicEvent::Connected(handle) if handle == self.client => self.ask(lab),
                QuicEvent::Lost(handle, why) if handle == self.client => {
                    self.lost[0] = Some(why.to_string());
                }
                _ => {}
            }
        }
        while let Some(event) = lab.server.app.poll_event() {
            match event {
                QuicEvent::Connected(handle) => self.server = Some(handle),
                QuicEvent::Stream(handle, StreamEvent::Opened { dir: Dir::Bi }) => {
                    while let Some(stream) = lab.server.app.accept_stream(handle, Dir::Bi) {
                        self.requests.insert(stream, Vec::new());
                    }
                }
                QuicEvent::Lost(handle, why) if Some(handle) == self.server => {
                    self.lost[1] = Some(why.to_string());
                }
                _ => {}
            }
        }
        self.serve(lab);
        self.receive(lab);
        self.all.iter().all(|transfer| transfer.ended.is_some())
    }

    fn ask(&mut self, lab: &mut QuicFaultNetwork) {
        for (number, transfer) in (0..).zip(&mut self.all) {
            let QuicMachine { machine, app: endpoint } = &mut lab.client;
            let host = machine.host();
            let stream = endpoint.open_stream(self.client, Dir::Bi).expect("allowed");
            endpoint.write(self.client, stream, Bytes::copy_from_slice(&[number]));
            if transfer.up {
                let file = self.files[&(true, transfer.file)];
                assert!(endpoint.send_file(host, (self.client, stream), file, 0, transfer.len));
            }
            endpoint.finish(self.client, stream);
            // On an upload the server reads the request first.
            transfer.stream = (!transfer.up).then_some(stream);
        }
    }

    /// Reads requests and starts responses.
    fn serve(&mut self, lab: &mut QuicFaultNetwork) {
        let Some(server) = self.server else { return };
        let QuicMachine { machine, app: endpoint } = &mut lab.server;
        let host = machine.host();
        let mut ready = Vec::new();
        for (&stream, request) in &mut self.requests {
            while let Ok(bytes) =
                endpoint.read(server, stream, REQUEST_BYTES - request.len().min(REQUEST_BYTES))
            {
                request.extend_from_slice(&bytes);
                if request.len() == REQUEST_BYTES {
                    ready.push(stream);
                    break;
                }
            }
        }
        for stream in ready {
            let request = self.requests.remove(&stream).expect("it is there");
            let transfer = &mut self.all[usize::from(request[0])];
            transfer.stream = Some(stream);
            if transfer.up {
                continue;
            }
            let file = self.files[&(false, transfer.file)];
            assert!(endpoint.send_file(host, (server, stream), file, 0, transfer.len));
            endpoint.set_priority(server, stream, self.priority);
            endpoint.finish(server, stream);
        }
    }

    fn receive(&mut self, lab: &mut QuicFaultNetwork) {
        for transfer in &mut self.all {
            let machine = if transfer.up { &mut lab.server } else { &mut lab.client };
            let handle = if transfer.up { self.server } else { Some(self.client) };
            let Some((stream, handle)) = transfer.stream.zip(handle) else { continue };
            while transfer.ended.is_none() {
                match machine.app.read(handle, stream, usize::MAX) {
                    Ok(bytes) => transfer.received.extend_from_slice(&bytes),
                    Err(StreamReadError::Blocked) => break,
                    Err(end) => transfer.ended = Some(end),
                }
            }
        }
    }

    /// Returns the bytes received by all transfers.
    pub(crate) fn received(&self) -> u64 {
        self.all.iter().map(|transfer| transfer.received.len() as u64).sum()
    }

    /// Checks that everything has arrived intact.
    pub(crate) fn check(&self) {
        assert_eq!(self.lost, [None, None]);
        for transfer in &self.all {
            transfer.check();
        }
    }

    /// Runs until all transfers have ended, and checks them.
    pub(crate) fn run(&mut self, lab: &mut QuicFaultNetwork) {
        let ended = lab.run(120, |lab| self.step(lab));
        let server = lab.server.app.counters();
        assert!(ended, "{} bytes, {:?}, {server:?}", self.received(), self.lost);
        self.check();
    }

    /// Closes the connection and checks that nothing is left at either device.
    pub(crate) fn close(&mut self, lab: &mut QuicFaultNetwork) {
        for (&(up, _), &file) in &self.files {
            let machine = if up { &mut lab.client } else { &mut lab.server };
            machine.host().offload_close(file);
        }
        let (now, QuicMachine { machine, app }) = (lab.now, &mut lab.client);
        app.close(now, machine.host(), self.client, 0, "done");
        // The close may be lost; the server then needs its idle timeout of 30 seconds.
        lab.run(70, |_| false);
        for machine in [&lab.net.client, &lab.net.server] {
            for gauge in ["quic_connections_open", "quic_entries", "quic_routes", "quic_waiting"] {
                assert_eq!(machine.count(gauge), 0, "{gauge}");
            }
        }
    }
}

impl FileTransfer {
    /// Checks that the file has arrived intact.
    pub(crate) fn check(&self) {
        assert_eq!(self.ended, Some(StreamReadError::Finished), "{}", self.file);
        assert_eq!(self.received.len() as u64, self.len);
        let letter = u32::from(self.file.as_bytes()[0]);
        let wrong = (0..).zip(&self.received).find(|(at, byte)| **byte != file_byte(letter, *at));
        assert_eq!(wrong, None, "bytes of {}", self.file);
    }
}
