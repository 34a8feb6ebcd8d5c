//! A content server embedded in another program.
//!
//! Run it with `cargo run -p outboard-examples --bin site`. The program serves a folder that it
//! created; its device reads the files and sends them. A client on another machine requests one.
//! To serve on a network, use `outboard_stack::Stack::builder()` instead of the link in memory: see
//! `crates/stack/examples/echo.rs`.

use apps::content::{ContentServer, ContentServerConfig};
use base::{Duration, Instant};
use bytes::Bytes;
use examples::{Machine, run_until};
use host::{Application, Host, Notice, SocketId};
use io::disk::{DiskKind, open_disk};
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use wire::Endpoint;

const REQUEST: &[u8] = b"GET /page.txt HTTP/1.1\r\nHost: site.example\r\nConnection: close\r\n\r\n";

/// A client that sends one request.
struct Client {
    socket: SocketId,
    response: Vec<u8>,
    is_closed: bool,
}

impl Client {
    fn connect(host: &mut Host) -> Self {
        let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 80 };
        let socket = host.connect(Instant::ZERO, remote).expect("a connection");
        Self { socket, response: Vec::new(), is_closed: false }
    }
}

impl Application for Client {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if !matches!(notice, Notice::Socket(_)) || self.is_closed {
            return;
        }
        let ready = host.readiness(self.socket);
        if ready.writable && self.response.is_empty() && host.send_queue(self.socket) == 0 {
            let _ = host.send(now, self.socket, Bytes::from_static(REQUEST));
        }
        while let received @ 1.. = host.peek(self.socket).len() {
            self.response.extend_from_slice(host.peek(self.socket));
            host.consume(self.socket, received);
        }
        if host.readiness(self.socket).peer_closed {
            host.close(now, self.socket);
            self.is_closed = true;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("outboard-site-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let page = "The device read this page and sent it.\n".repeat(1000);
    std::fs::write(folder.join("page.txt"), &page)?;

    let (left, right) = memory_link_pair(&MemoryLinkConfig::default());
    let disk = open_disk(&folder, DiskKind::Sync)?;
    let mut server = Machine::new(1, left, Some(disk), |host| {
        ContentServer::new(ContentServerConfig::default(), host).expect("port 80 is free")
    });
    let mut client = Machine::new(2, right, None, Client::connect);
    let limit = Duration::from_secs(60);
    let (_, done) = run_until((&mut client, &mut server), limit, |client, _| client.app.is_closed);
    std::fs::remove_dir_all(&folder)?;
    assert!(done, "the response is complete");

    let response = String::from_utf8(client.app.response)?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("no head")?;
    println!("{head}\n");
    assert!(body == page, "the body differs from the file");
    let (sent, read) =
        (server.counter("file_offload_bytes"), server.counter("file_fallback_bytes"));
    println!("{sent} bytes of the file were sent by the device, {read} were read by the host");
    assert_eq!((sent, read), (page.len() as u64, 0));
    Ok(())
}
