//! HTTPS client that keeps many connections open, over rustls.
//!
//! `tlsmany ADDR:PORT PATH FILE CONNECTIONS SOURCE` opens CONNECTIONS connections from the local
//! address SOURCE, and prints a line. For each line on standard input it then requests PATH once on
//! each connection, compares each response's content with that of FILE, and prints a line. At the
//! end of standard input it closes the connections. The first error ends it with exit code 1.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;

use interop::tls_client::{self, Failure};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Socket, Type};

struct OpenConnection {
    tls: ClientConnection,
    tcp: TcpStream,
}

impl OpenConnection {
    /// Connects from the address `source` and completes the handshake.
    fn open(
        config: &Arc<ClientConfig>,
        server: SocketAddr,
        source: IpAddr,
    ) -> Result<Self, Failure> {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        socket.connect(&server.into())?;
        let mut tcp = TcpStream::from(socket);
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let mut tls = ClientConnection::new(Arc::clone(config), name)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        // The Finished message.
        while tls.wants_write() {
            tls.write_tls(&mut tcp)?;
        }
        Ok(Self { tls, tcp })
    }

    /// Requests `path`, and compares the content of the response with `content`.
    fn request(&mut self, path: &str, content: &[u8]) -> Result<(), Failure> {
        let mut stream = rustls::Stream::new(&mut self.tls, &mut self.tcp);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut response = Vec::new();
        let head_len = loop {
            let mut bytes = [0; 4096];
            let len = stream.read(&mut bytes)?;
            if len == 0 {
                return Err("the connection ended within a head".into());
            }
            response.extend_from_slice(&bytes[..len]);
            if let Some(at) = response.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let read = response.len();
        response.resize(head_len + content.len(), 0);
        if let Some(rest) = response.get_mut(read..) {
            stream.read_exact(rest)?;
        }
        if !response.starts_with(b"HTTP/1.1 200 ") || &response[head_len..] != content {
            return Err("another status or another content".into());
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, path, file, connections, source] = &args[..] else { return Err("usage".into()) };
    let (server, source): (SocketAddr, IpAddr) = (server.parse()?, source.parse()?);
    let connections: usize = connections.parse()?;
    let content = std::fs::read(file)?;
    let mut config = tls_client::config()?;
    config.resumption = rustls::client::Resumption::disabled();
    let config = Arc::new(config);

    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(OpenConnection::open(&config, server, source)?);
    }
    println!("{connections} connections are open");
    for line in std::io::stdin().lock().lines() {
        line?;
        open.iter_mut().try_for_each(|connection| connection.request(path, &content))?;
        println!("{connections} responses are equal");
    }
    Ok(())
}
