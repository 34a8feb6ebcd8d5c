//! The two servers in their network namespaces, and the files they serve.
//!
//! Outboard's namespace holds the TAP, its kernel's end and the client. nginx's namespace is joined
//! to its client's by a pair of virtual Ethernet interfaces, with whatever offloads and MTU the
//! kernel gives them.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use crate::bench::live::Row;
use crate::bench::live::lab::{
    Bed, CERT, KEY, Link, Process, Server, cannot_write, in_new_namespace, inside, is_listening,
    join, log_file, spawn, start_holder, start_outboard, wait_until, write_certificate,
};
use crate::bench::live::tools::output;
use cli::Failure;

const OUTBOARD_ADDR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NGINX_ADDR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const NGINX_CLIENT_ADDR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// nginx, and the end of its link.
pub(super) struct Nginx {
    server: Server,
    /// Congestion control of the system.
    congestion: String,
    /// Holds the client's namespace.
    _client: Process,
}

impl Nginx {
    pub(super) const fn server(&self) -> &Server {
        &self.server
    }

    /// The system's congestion control.
    pub(super) fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Sets the congestion control of connections to come.
    pub(super) fn set_congestion(&self, name: &str) -> Result<(), Failure> {
        let net = "10.78.0.0/24";
        let route = ["route", "replace", net, "dev", "server", "proto", "kernel", "scope", "link"];
        let source = NGINX_ADDR.to_string();
        let rest = ["src", &source, "congctl", name];
        output(inside(self.server.pid(), "ip").args(route).args(rest)).map(drop)
    }
}

/// Everything that is set up.
pub(super) struct Lab {
    // In this order they end: the servers before their folder.
    plain: Server,
    /// A second instance, in a namespace of its own, that speaks HTTPS.
    secure: Server,
    pub(super) nginx: Nginx,
    pub(super) bed: Bed,
}

impl Lab {
    /// Makes the files, starts both servers and waits until they listen.
    pub(super) fn start(rows: &[Row], serve_options: &[String]) -> Result<Self, Failure> {
        let bed = Bed::new(rows)?;
        let (cert, key) = write_certificate(bed.path())?;
        let site = bed.site().to_string_lossy().into_owned();
        let start = |name: &str, options: &[String]| {
            let arguments = [&["serve".to_owned(), site.clone()], options].concat();
            start_outboard(&bed, name, &arguments, OUTBOARD_ADDR)
        };
        let plain = start("http", serve_options)?;
        let tls = ["--tls", "--tls-cert", &cert, "--tls-key", &key].map(str::to_owned);
        let secure = start("https", &[&tls[..], serve_options].concat())?;
        let nginx = start_nginx(&bed)?;
        Ok(Self { plain, secure, nginx, bed })
    }

    /// Our server for a row.
    pub(super) const fn outboard(&self, row: Row) -> &Server {
        if row.tls { &self.secure } else { &self.plain }
    }
}

fn start_nginx(bed: &Bed) -> Result<Nginx, Failure> {
    let (folder, site) = (bed.path(), bed.site());
    let config = folder.join("nginx.conf");
    fs::write(&config, nginx_config(folder, &site)).map_err(|e| cannot_write(&config, &e))?;
    let log = folder.join("nginx.log");
    let mut command = in_new_namespace(bed.server_core, Path::new("nginx"));
    command.arg("-e").arg(&log).arg("-c").arg(&config);
    command.stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    let server_pid = process.0.id();
    // nginx listens on any address, so it is ready before its interface is there.
    wait_until("nginx", &log, || is_listening(server_pid, 80))?;
    let client = start_holder(bed, &log)?;
    let client_pid = client.0.id();
    join(client_pid, server_pid, Link { client: NGINX_CLIENT_ADDR, server: NGINX_ADDR })?;
    let sysctl = "/proc/sys/net/ipv4/tcp_congestion_control";
    let congestion = output(inside(server_pid, "cat").arg(sysctl))?.trim().to_owned();
    let server = Server { process, addr: NGINX_ADDR, client_namespace: client_pid };
    Ok(Nginx { server, congestion, _client: client })
}

/// nginx as somebody who wants it fast sets it up: one worker, sendfile, metadata and descriptors
/// cached, no log.
///
/// `sendfile_max_chunk` is left alone: its default of 2 MiB is there so that one connection does
/// not keep a worker to itself. Over TLS sendfile is not to be had without the kernel's TLS; so
/// files are read in pieces of 256 KiB and sealed in records of 16 KiB.
fn nginx_config(folder: &Path, site: &Path) -> String {
    let (folder, site) = (folder.display(), site.display());
    format!(
        r"user root; daemon off; master_process off; worker_processes 1;
pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ use epoll; worker_connections 8192; multi_accept on; }}
http {{
  access_log off; default_type application/octet-stream;
  sendfile on; tcp_nopush on; tcp_nodelay on;
  keepalive_timeout 600; keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s; open_file_cache_min_uses 1;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  ssl_certificate {folder}/{CERT}; ssl_certificate_key {folder}/{KEY};
  ssl_protocols TLSv1.2 TLSv1.3; ssl_buffer_size 16k; ssl_session_cache shared:a:10m;
  output_buffers 2 256k;
  server {{ listen 0.0.0.0:80 backlog=65535 reuseport; root {site}; }}
  server {{ listen 0.0.0.0:443 ssl backlog=65535 reuseport; root {site}; }}
}}
"
    )
}
