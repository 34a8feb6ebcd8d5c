//! Third-party servers, used as backends: each runs in a namespace until it is dropped.

use crate::{Netns, tool};
use std::path::Path;
use std::process::{Child, Stdio};

/// A third-party server in a namespace.
#[derive(Debug)]
pub struct ThirdPartyServer {
    child: Child,
}

impl ThirdPartyServer {
    /// Runs `program` with `args`, and waits until it listens on `port`.
    ///
    /// # Panics
    /// If it does not start, or does not listen within 30 seconds.
    #[must_use]
    pub fn start(netns: &Netns, program: &str, args: &[&str], port: u16) -> Self {
        let mut command = netns.command(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn();
        let child = child.unwrap_or_else(|e| panic!("cannot run {program}: {e}"));
        // Readiness raises no event to wait for: a shell polls the port.
        let script =
            format!("until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done");
        let waited = tool::run(netns.command("timeout").args(["30", "bash", "-c", &script]));
        assert!(waited.status.success(), "{program} {args:?} does not listen on {port}");
        Self { child }
    }

    /// Starts an nginx that serves `folder` on each of `ports`, with the port in a field
    /// `X-Backend` and forwarding fields of the request in `X-Seen`. nginx's own files go to
    /// `scratch`; `more` is added to each server block.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn nginx(netns: &Netns, scratch: &Path, folder: &Path, ports: &[u16], more: &str) -> Self {
        let (at, site) = (scratch.display(), folder.display());
        let first = ports.first().copied().unwrap_or_default();
        let servers: String = ports
            .iter()
            .map(|port| {
                format!(
                    "server {{ listen 0.0.0.0:{port} backlog=16384; root {site}; \
                     add_header X-Backend {port} always; \
                     add_header X-Seen \"$http_x_forwarded_for,$http_via\" always; {more} }}\n"
                )
            })
            .collect();
        let config = format!(
            "user root; daemon off; master_process off; worker_processes 1;
pid {at}/nginx{first}.pid; error_log {at}/nginx{first}.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 19000; }}
http {{
  access_log off; default_type application/octet-stream; keepalive_requests 100000000;
  client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3;
  uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
{servers}}}\n"
        );
        let path = scratch.join(format!("nginx{first}.conf"));
        std::fs::write(&path, config).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let log = format!("{at}/nginx{first}.log");
        let path = path.to_string_lossy();
        Self::start(netns, "nginx", &["-e", &log, "-c", &path], first)
    }

    /// Kills the server, like a crash.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ThirdPartyServer {
    fn drop(&mut self) {
        self.end();
    }
}
