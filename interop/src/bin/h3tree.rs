//! HTTP/3 client for the tests, over quinn and h3: fetches a tree of files.
//!
//! `h3tree ADDR:PORT FOLDER CONNECTIONS PATH..` distributes the paths over the connections, sends
//! all requests of a connection at once, each on a stream of its own, and writes the files below
//! the folder. `clients/h3tree.py` does the same with another QUIC stack.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use bytes::Buf as _;
use interop::quic::{Failure, Requests, block_on, client, connect};
use tokio::task::JoinSet;

async fn fetch(mut requests: Requests, path: String, to: PathBuf) -> Result<(), Failure> {
    let request = http::Request::get(format!("https://localhost{path}")).body(())?;
    let mut stream = requests.send_request(request).await?;
    stream.finish().await?;
    let status = stream.recv_response().await?.status();
    if status != http::StatusCode::OK {
        return Err(format!("{path}: {status}").into());
    }
    let mut file = std::fs::File::create(to)?;
    while let Some(mut chunk) = stream.recv_data().await? {
        while chunk.has_remaining() {
            let len = chunk.chunk().len();
            file.write_all(chunk.chunk())?;
            chunk.advance(len);
        }
    }
    Ok(())
}

async fn fetch_all(args: &[String]) -> Result<(), Failure> {
    let [addr, folder, connections, paths @ ..] = args else { return Err("usage".into()) };
    let (addr, connections) = (addr.parse()?, connections.parse::<usize>()?);
    let endpoint = client()?;
    let mut fetches = JoinSet::new();
    for nth in 0..connections {
        let (requests, _) = connect(&endpoint, addr).await?;
        for path in paths.iter().skip(nth).step_by(connections) {
            let to = Path::new(folder).join(path.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().ok_or("a path without a folder")?)?;
            fetches.spawn(fetch(requests.clone(), path.clone(), to));
        }
    }
    while let Some(fetched) = fetches.join_next().await {
        fetched??;
    }
    endpoint.wait_idle().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    block_on(fetch_all(&args))
}
