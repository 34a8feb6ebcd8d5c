//! The three proxies, each with a client and a backend of its own.
//!
//! Outboard's namespace holds the TAP, its kernel's end, the client and the backend. The other
//! proxies' namespaces are each joined to one with a client and a backend by a pair of virtual
//! Ethernet interfaces. Clients and backends run on one core, the proxies on the other.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use crate::bench::live::Row;
use crate::bench::live::lab::{
    Bed, Link, Process, Server, cannot_write, counters, in_new_namespace, inside, is_listening,
    join, log_file, spawn, start_holder, start_outboard, wait_until,
};
use cli::Failure;

const OUTBOARD: Link =
    Link { client: Ipv4Addr::new(10, 77, 0, 1), server: Ipv4Addr::new(10, 77, 0, 2) };
const HAPROXY: Link =
    Link { client: Ipv4Addr::new(10, 78, 0, 1), server: Ipv4Addr::new(10, 78, 0, 2) };
const NGINX: Link =
    Link { client: Ipv4Addr::new(10, 79, 0, 1), server: Ipv4Addr::new(10, 79, 0, 2) };
/// The backends' port.
const BACKEND_PORT: u16 = 8080;

/// Everything that is set up.
pub(super) struct Lab {
    // In this order they end: proxies, what is around them, the folder.
    servers: [Server; 3],
    _others: Vec<Process>,
    pub(super) bed: Bed,
}

impl Lab {
    /// Makes the files, starts everything and waits until it listens.
    pub(super) fn start(rows: &[Row], options: &[String]) -> Result<Self, Failure> {
        let bed = Bed::new(rows)?;
        let backend = format!("{}:{BACKEND_PORT}", OUTBOARD.client);
        let arguments = ["proxy", "--listen", ":80", "--backend", &backend].map(str::to_owned);
        let arguments = [&arguments[..], options].concat();
        let ours = start_outboard(&bed, "proxy", &arguments, OUTBOARD.server)?;
        let mut others = vec![start_backend(&bed, "outboard", ours.pid())?];
        // In the foreground; the file comes behind.
        let (of_haproxy, of_nginx) = (["haproxy", "-db", "-f"], ["nginx", "-q", "-c"]);
        let haproxy = start_proxy(&bed, &of_haproxy, &haproxy_config(), HAPROXY, &mut others)?;
        let text = nginx_config(bed.path());
        let nginx = start_proxy(&bed, &of_nginx, &text, NGINX, &mut others)?;
        Ok(Self { servers: [ours, haproxy, nginx], _others: others, bed })
    }

    /// The proxies.
    pub(super) const fn servers(&self) -> &[Server; 3] {
        &self.servers
    }

    /// How many connections of ours the device and the host have relayed.
    pub(super) fn relayed(&self) -> Result<[u64; 2], Failure> {
        let all = counters(&self.bed, &self.servers[0], "proxy")?;
        let count = |name: &str| all["host"]["q0"][name].as_u64().unwrap_or(0);
        Ok([count("proxy_spliced"), count("proxy_relayed")])
    }
}

/// nginx with the files, on the client's core, in the namespace of a process.
fn start_backend(bed: &Bed, name: &str, namespace: u32) -> Result<Process, Failure> {
    let folder = bed.path().join(format!("backend-{name}"));
    fs::create_dir(&folder).map_err(|e| cannot_write(&folder, &e))?;
    let (config, log) = (folder.join("nginx.conf"), folder.join("log"));
    fs::write(&config, backend_config(&folder, &bed.site()))
        .map_err(|e| cannot_write(&config, &e))?;
    let mut command = inside(namespace, "taskset");
    command.arg("--cpu-list").arg(bed.client_core.to_string());
    command.args(["setpriv", "--pdeathsig", "KILL", "nginx", "-e"]).arg(&log);
    command.arg("-c").arg(&config).stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    wait_until("the backend", &log, || is_listening(namespace, BACKEND_PORT))?;
    Ok(process)
}

fn start_proxy(
    bed: &Bed,
    command: &[&str; 3],
    config: &str,
    link: Link,
    others: &mut Vec<Process>,
) -> Result<Server, Failure> {
    let [name, options @ ..] = command;
    let path = bed.path().join(format!("{name}.conf"));
    let log = bed.path().join(format!("{name}.log"));
    fs::write(&path, config).map_err(|e| cannot_write(&path, &e))?;
    let mut command = in_new_namespace(bed.server_core, Path::new(name));
    command.args(options).arg(&path);
    command.stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    let server_pid = process.0.id();
    // They listen on any address, so they are ready before their interfaces are there.
    wait_until(name, &log, || is_listening(server_pid, 80))?;
    let client = start_holder(bed, &log)?;
    let client_namespace = client.0.id();
    join(client_namespace, server_pid, link)?;
    others.push(start_backend(bed, name, client_namespace)?);
    others.push(client);
    Ok(Server { process, addr: link.server, client_namespace })
}

/// HAProxy on one thread, which moves bytes inside the kernel where it thinks that it pays.
fn haproxy_config() -> String {
    format!(
        "global
  nbthread 1
  maxconn 4000
defaults
  mode http
  option splice-auto
  timeout connect 5s
  timeout client 600s
  timeout server 600s
listen proxy
  bind 0.0.0.0:80
  server backend {}:{BACKEND_PORT}
",
        HAPROXY.client
    )
}

/// nginx with one worker, and connections to the backend that are kept.
fn nginx_config(folder: &Path) -> String {
    let (at, backend) = (folder.display(), NGINX.client);
    format!(
        "user root; daemon off; master_process off; worker_processes 1;
pid {at}/nginx.pid; error_log {at}/nginx.log;
events {{ use epoll; worker_connections 8192; multi_accept on; }}
http {{
  access_log off; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 1000000000;
  client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3;
  uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
  upstream backend {{
    server {backend}:{BACKEND_PORT}; keepalive 256; keepalive_requests 1000000000;
  }}
  server {{
    listen 0.0.0.0:80 backlog=65535 reuseport;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffers 8 64k; proxy_buffer_size 64k;
    }}
  }}
}}
"
    )
}

/// The files, as cheaply as they can be had.
fn backend_config(folder: &Path, site: &Path) -> String {
    let (at, site) = (folder.display(), site.display());
    format!(
        "user root; daemon off; master_process off; worker_processes 1;
pid {at}/pid; error_log {at}/log;
events {{ use epoll; worker_connections 8192; multi_accept on; }}
http {{
  access_log off; default_type application/octet-stream;
  sendfile on; tcp_nopush on; tcp_nodelay on;
  keepalive_timeout 600; keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s; open_file_cache_min_uses 1;
  client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3;
  uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
  server {{ listen 0.0.0.0:{BACKEND_PORT} backlog=65535 reuseport; root {site}; }}
}}
"
    )
}
