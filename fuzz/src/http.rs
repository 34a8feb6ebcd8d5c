//! Fuzzes HTTP bodies: uploads to the content server with the chunked coding or a content coding,
//! which the device decompresses, responses to a
//! download over HTTP/1.1, and the frames of a response over HTTP/3. However the bytes are cut, the
//! result is the same.

use std::collections::VecDeque;
use std::sync::Arc;

use apps::content::http3_client::{Http3ResponseParser, Http3ResponsePart};
use apps::content::{
    ContentServer, ContentServerConfig, UploadConfig, UploadDecompression, UploadQuota,
};
use apps::get::{GetClient, GetClientConfig, GetEvent, GetOrder, GetTransport};
use base::Instant;
use host::{Application, Host, ListenConfig, Notice};
use wire::Endpoint;

use crate::input::FuzzInput;
use crate::net::{FuzzNetwork, FuzzSubject, PORT};

/// Maximum number of bytes of an uploaded file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of pieces of a message.
const PIECES_MAX: usize = 64;

/// Runs this fuzz target. The first byte of `data` selects the parser, the second one the length of
/// the pieces.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let (kind, len) = (input.byte(), usize::from(input.byte()) + 1);
    let cut = len.max(input.0.len() / PIECES_MAX);
    let encoded = |coding| {
        let pieces = upload(Some(coding), true, input.0, cut);
        assert_eq!(pieces, upload(Some(coding), true, input.0, usize::MAX), "{coding}");
    };
    match kind % 3 {
        _ if kind == 0xfe => encoded("gzip"),
        _ if kind == 0xff => encoded("zstd"),
        0 => assert_eq!(
            upload(None, false, input.0, cut),
            upload(None, false, input.0, usize::MAX),
            "an upload"
        ),
        1 => assert_eq!(download(input.0, cut), download(input.0, usize::MAX), "a download"),
        _ => assert_eq!(http3(input.0, len), http3(input.0, usize::MAX), "HTTP/3"),
    }
}

impl FuzzSubject for ContentServer {}

fn pieces(bytes: &[u8], len: usize) -> VecDeque<Vec<u8>> {
    bytes.chunks(len).map(<[u8]>::to_vec).collect()
}

/// Returns the content of the file that the server stores of a PUT with these bytes as its content:
/// with the chunked coding, or with a content coding.
fn upload(coding: Option<&str>, offload: bool, coded: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut talk = pieces(coded, len);
    let fields = match coding {
        Some(coding) => {
            format!("Content-Length: {}\r\nContent-Encoding: {coding}\r\n", coded.len())
        }
        None => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    talk.push_front(format!("PUT /new HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into());
    let server = |host: &mut Host, _, _| {
        let quota = Arc::new(UploadQuota::new(u64::MAX, 0));
        let decoders = Arc::new(decompress::Provider);
        let uploads = Some(UploadConfig {
            quota,
            file_bytes_max: FILE_BYTES_MAX,
            served_as: None,
            decompression: Some(UploadDecompression { decoders, ratio_max: 100 }),
        });
        let listen = vec![ListenConfig { addr: None, port: PORT, backlog: 4 }];
        let config = ContentServerConfig { listen, uploads, ..ContentServerConfig::default() };
        match ContentServer::new(config, host) {
            Ok(server) => server,
            Err(error) => panic!("the port is free: {error}"),
        }
    };
    let mut net = FuzzNetwork::new(false, offload, [talk], FuzzInput(&[]), server);
    net.run();
    let server = &mut net.net.server;
    for name in ["uploads_open", "upload_buffer_bytes"] {
        assert_eq!(server.count(name), 0, "{name}");
    }
    assert!(!server.disk.paths().any(|path| path.contains("-upload-")), "a temporary file");
    let stored = server.disk.paths().any(|path| path == "new");
    stored.then(|| server.disk.file("new").bytes().to_vec())
}

/// A download that stores its content.
struct Download {
    client: GetClient,
    content: Vec<u8>,
    is_complete: bool,
}

impl Application for Download {
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
        let mut worked = self.client.advance(now, host);
        while let Some(event) = self.client.poll_event() {
            worked = true;
            match event {
                GetEvent::Begun { .. } => {}
                GetEvent::Content { id, bytes, .. } => {
                    self.client.written(id, bytes.len());
                    self.content.extend(bytes);
                }
                GetEvent::Ended { result, .. } => self.is_complete = result.is_ok(),
            }
        }
        worked
    }
}

impl FuzzSubject for Download {}

/// Returns the content of a download from a server that sends these bytes, if it is complete.
fn download(response: &[u8], len: usize) -> Option<Vec<u8>> {
    let client = |host: &mut Host, now, to: Endpoint| {
        let mut client = GetClient::new(GetClientConfig::default(), None);
        let url = match format!("http://server:{PORT}/x").parse() {
            Ok(url) => url,
            Err(error) => panic!("it is a URL: {error}"),
        };
        let (addrs, transport) = (vec![to.addr], GetTransport::Plain);
        let order = GetOrder { id: 0, url, addrs, transport, parts_max: 1, resume: None };
        client.start(now, host, order);
        Download { client, content: Vec::new(), is_complete: false }
    };
    let talk = pieces(response, len);
    let mut net = FuzzNetwork::new(false, false, [talk], FuzzInput(&[]), client);
    net.run();
    let Download { content, is_complete, .. } = net.net.server.app;
    is_complete.then_some(content)
}

/// Returns the heads and the content of the response in these bytes, or the error.
fn http3(bytes: &[u8], len: usize) -> Result<(usize, Vec<u8>), &'static str> {
    let mut parser = Http3ResponseParser::default();
    let (mut heads, mut content) = (0, Vec::new());
    for mut rest in bytes.chunks(len) {
        while let Some(part) = parser.next(&mut rest)? {
            match part {
                Http3ResponsePart::Head(_) => heads += 1,
                Http3ResponsePart::Content(piece) => content.extend_from_slice(piece),
            }
        }
    }
    Ok((heads, content))
}
