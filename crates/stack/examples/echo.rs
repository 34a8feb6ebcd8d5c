//! A server that echoes received bytes, on its own stack.
//!
//! Run `cargo run --release -p outboard-stack --example echo` as root, and `nc 10.77.0.2 7` in
//! another terminal. It has the options, control socket, metrics and drain of `outboard serve`:
//! `outboard ss` shows its connections, Ctrl-C drains it.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Parser;
use outboard_stack::base::Instant;
use outboard_stack::host::{Application, Host, ListenConfig, ListenerId, Notice};
use outboard_stack::{BACKLOG, Failure, Signals, Stack, StackOptions};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: StackOptions,
}

pub(crate) struct Echo {
    listener: ListenerId,
    bytes: u64,
}

impl Echo {
    pub(crate) fn listen(host: &mut Host, port: u16) -> Result<Self, Failure> {
        let listener = host.listen(ListenConfig { addr: None, port, backlog: BACKLOG });
        let listener = listener
            .map_err(|e| Failure::Unavailable(format!("cannot listen on port {port}: {e}")))?;
        Ok(Self { listener, bytes: 0 })
    }
}

impl Application for Echo {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let (Notice::Accepted(_, socket) | Notice::Socket(socket)) = notice else { return };
        // As much as the send buffer takes; there is another notice when it has room again.
        while let received @ 1.. = host.peek(socket).len() {
            let bytes = Bytes::copy_from_slice(host.peek(socket));
            let sent = host.send(now, socket, bytes).unwrap_or(0);
            host.consume(socket, sent);
            self.bytes += sent as u64;
            if sent < received {
                break;
            }
        }
        let ready = host.readiness(socket);
        if ready.peer_closed || ready.error.is_some() {
            host.close(now, socket);
        }
    }

    fn drain(&mut self, _: Instant, host: &mut Host) {
        host.unlisten(self.listener);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        f("echo_bytes", self.bytes);
    }
}

fn run(options: StackOptions) -> Result<(), Failure> {
    let signals = Signals::take()?;
    let stack = Stack::builder()
        .options(options)
        .application(|queue| Echo::listen(queue.host, 7))
        .start()?;
    println!("serving echo on port 7");
    stack.run(signals, None)
}

fn main() -> ExitCode {
    outboard_stack::exit_code("echo", run(CommandLine::parse().options))
}
