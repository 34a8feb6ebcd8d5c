//! HTTP/3 client for the tests, over quinn and h3: fetches paths and prints the responses.
//!
//! `h3get ADDR:PORT PATH[,PATH].. OUTPUT [NAME:VALUE]..` runs in the server's namespace. It prints
//! status and fields of each response, and writes the content to a file, which holds that of the
//! last path in the end. Every certificate is accepted. With `H3GET_REBIND=N` in its environment,
//! it changes to another local port after every N bytes of content.

use std::io::Write as _;

use bytes::Buf as _;
use interop::quic::{Failure, block_on, client, connect};

async fn get(args: &[String]) -> Result<(), Failure> {
    let [addr, path, output, fields @ ..] = args else { return Err("usage".into()) };
    let endpoint = client()?;
    let (mut send, drive) = connect(&endpoint, addr.parse()?).await?;
    let rebind = std::env::var("H3GET_REBIND").ok().map(|bytes| bytes.parse()).transpose()?;
    let (rebind, mut since): (Option<usize>, usize) = (rebind, 0);
    for path in path.split(',') {
        let mut request = http::Request::get(format!("https://localhost{path}"));
        for field in fields {
            let (name, value) = field.split_once(':').ok_or("NAME:VALUE")?;
            request = request.header(name, value);
        }
        let mut stream = send.send_request(request.body(())?).await?;
        stream.finish().await?;
        let response = stream.recv_response().await?;
        println!("{}", response.status().as_u16());
        for (name, value) in response.headers() {
            println!("{name}: {}", value.to_str()?);
        }
        let mut file = std::fs::File::create(output)?;
        while let Some(mut chunk) = stream.recv_data().await? {
            while chunk.has_remaining() {
                let len = chunk.chunk().len();
                file.write_all(chunk.chunk())?;
                chunk.advance(len);
                since += len;
            }
            if rebind.is_some_and(|bytes| since >= bytes) {
                endpoint.rebind(std::net::UdpSocket::bind("0.0.0.0:0")?)?;
                since = 0;
            }
        }
    }
    drop(send);
    let _ = drive.await;
    endpoint.wait_idle().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    block_on(get(&args))
}
