//! HTTP/3 load generator for `outboard-lab bench quic-live`, over quinn and h3: fetches one path as
//! often as possible for a limited time.
//!
//! `h3load ADDR:PORT PATH CONNECTIONS STREAMS SECONDS` keeps STREAMS requests in flight on each of
//! CONNECTIONS connections, and starts no request after the time is up. It prints one line in the
//! format of the benchmarks' wrk script: duration in microseconds, responses, bytes of content,
//! errors (connect, read, write, status, timeout), and the median and 99th percentile of the
//! latency in microseconds.

use std::net::SocketAddr;

use base::Duration;
use bytes::Buf as _;
use interop::quic::{Failure, Requests, block_on, client, connect};
use io::clock::MonotonicClock;
use tokio::task::JoinSet;

#[derive(Default)]
struct LoadResult {
    bytes: u64,
    latencies_us: Vec<u64>,
    read_errors: u64,
    status_errors: u64,
}

/// Fetches a URL and returns the bytes of its content; `None` if the status is not 200.
async fn fetch(requests: &mut Requests, url: &str) -> Result<Option<u64>, Failure> {
    let mut stream = requests.send_request(http::Request::get(url).body(())?).await?;
    stream.finish().await?;
    let status = stream.recv_response().await?.status();
    let mut bytes = 0;
    while let Some(chunk) = stream.recv_data().await? {
        bytes += chunk.remaining() as u64;
    }
    Ok((status == http::StatusCode::OK).then_some(bytes))
}

/// Sends one request after another until the time is up.
async fn repeat(
    mut requests: Requests,
    url: String,
    clock: MonotonicClock,
    time: Duration,
) -> LoadResult {
    let mut sum = LoadResult::default();
    loop {
        let began = clock.now();
        if began.since(base::Instant::ZERO) >= time {
            return sum;
        }
        match fetch(&mut requests, &url).await {
            Ok(Some(bytes)) => {
                sum.bytes += bytes;
                sum.latencies_us.push(clock.now().since(began).as_nanos() / 1000);
            }
            Ok(None) => sum.status_errors += 1,
            Err(error) => {
                eprintln!("h3load: {error}");
                sum.read_errors += 1;
                return sum;
            }
        }
    }
}

async fn load(args: &[String]) -> Result<(), Failure> {
    let [addr, path, connections, streams, seconds] = args else { return Err("usage".into()) };
    let addr: SocketAddr = addr.parse()?;
    let (connections, streams): (usize, usize) = (connections.parse()?, streams.parse()?);
    let time = Duration::from_secs(seconds.parse()?);
    let endpoint = client()?;
    let mut opened = Vec::new();
    let mut connect_errors = 0;
    for _ in 0..connections {
        match connect(&endpoint, addr).await {
            Ok((requests, _)) => opened.push(requests),
            Err(_) => connect_errors += 1,
        }
    }
    let clock = MonotonicClock::new();
    let mut runs = JoinSet::new();
    let url = format!("https://localhost{path}");
    for requests in opened {
        for _ in 0..streams {
            runs.spawn(repeat(requests.clone(), url.clone(), clock, time));
        }
    }
    let mut all = LoadResult::default();
    while let Some(sum) = runs.join_next().await {
        let sum = sum?;
        all.bytes += sum.bytes;
        all.latencies_us.extend(sum.latencies_us);
        all.read_errors += sum.read_errors;
        all.status_errors += sum.status_errors;
    }
    let took_us = clock.now().since(base::Instant::ZERO).as_nanos() / 1000;
    all.latencies_us.sort_unstable();
    let requests = all.latencies_us.len();
    let at = |percent: usize| all.latencies_us.get(requests * percent / 100).copied().unwrap_or(0);
    let LoadResult { bytes, read_errors, status_errors, .. } = all;
    let errors = format!("{connect_errors} {read_errors} 0 {status_errors} 0");
    println!("numbers {took_us} {requests} {bytes} {errors} {} {}", at(50), at(99));
    endpoint.wait_idle().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    block_on(load(&args))
}
