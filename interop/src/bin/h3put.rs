//! HTTP/3 client for the tests, over quinn and h3: uploads files and prints the statuses.
//!
//! `h3put ADDR:PORT FOLDER NAME[=CODING]..` runs in the server's namespace. It uploads each file of
//! the folder to the path of its name, over one connection, with that Content-Encoding. Every
//! certificate is accepted.

use bytes::Bytes;
use interop::quic::{Failure, block_on, client, connect};

/// Bytes of a DATA frame.
const PIECE_BYTES: usize = 64 << 10;

async fn put(args: &[String]) -> Result<(), Failure> {
    let [addr, folder, names @ ..] = args else { return Err("usage".into()) };
    let endpoint = client()?;
    let (mut send, drive) = connect(&endpoint, addr.parse()?).await?;
    for (nth, name) in names.iter().enumerate() {
        let (name, coding) = name.split_once('=').unwrap_or((name.as_str(), ""));
        let content = Bytes::from(std::fs::read(std::path::Path::new(folder).join(name))?);
        let mut request = http::Request::put(format!("https://localhost/{name}"));
        if nth % 2 == 0 {
            request = request.header("content-length", content.len());
        }
        if !coding.is_empty() {
            request = request.header("content-encoding", coding);
        }
        let mut stream = send.send_request(request.body(())?).await?;
        for at in (0..content.len()).step_by(PIECE_BYTES) {
            stream.send_data(content.slice(at..content.len().min(at + PIECE_BYTES))).await?;
        }
        stream.finish().await?;
        println!("{}", stream.recv_response().await?.status().as_u16());
        while stream.recv_data().await?.is_some() {}
    }
    drop(send);
    let _ = drive.await;
    endpoint.wait_idle().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    block_on(put(&args))
}
