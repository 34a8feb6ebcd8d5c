//! The three proxies, each with a client and a backend of its own.
//!
//! Each of the other proxies' namespaces is linked by a pair of virtual Ethernet interfaces to a
//! namespace with a client and a backend; [`outboard`] describes ours. Clients and backends run on
//! one core, the proxies on the other.
//!
//! [`outboard`]: crate::bench::live::outboard

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use crate::bench::live::LoadRow;
use crate::bench::live::environment::{
    LiveServer, LiveTestbed, NGINX_FILES, Process, VethLink, cannot_write, command_in_namespace,
    is_listening, link_client_namespace, log_file, spawn, start_third_party, wait_until,
    write_nginx_config,
};
use crate::bench::live::outboard::{LiveLink, OUTBOARD, counters, start_outboard};
use cli::Failure;

const HAPROXY: VethLink =
    VethLink { client: Ipv4Addr::new(10, 78, 0, 1), server: Ipv4Addr::new(10, 78, 0, 2) };
const NGINX: VethLink =
    VethLink { client: Ipv4Addr::new(10, 79, 0, 1), server: Ipv4Addr::new(10, 79, 0, 2) };
/// TCP port of the backends.
const BACKEND_PORT: u16 = 8080;

/// All processes, and the folder.
pub(super) struct ProxyLiveServers {
    // Dropped in this order: proxies, then clients and backends, then the folder.
    servers: [LiveServer; 3],
    _others: Vec<Process>,
    pub(super) bed: LiveTestbed,
}

impl ProxyLiveServers {
    /// Writes the files, starts all processes and waits until they listen.
    pub(super) fn start(
        rows: &[LoadRow],
        link: LiveLink,
        options: &[String],
    ) -> Result<Self, Failure> {
        let bed = LiveTestbed::new(rows)?;
        let backend = format!("{}:{BACKEND_PORT}", OUTBOARD.client);
        let arguments = ["proxy", "--listen", ":80", "--backend", &backend].map(str::to_owned);
        let arguments = [&arguments[..], options].concat();
        let ours = start_outboard(&bed, "proxy", &arguments, (link, OUTBOARD))?;
        let mut others = vec![start_backend(&bed, "outboard", ours.client_namespace())?];
        // In the foreground; the configuration file's path follows.
        let config = bed.path().join("haproxy.conf");
        fs::write(&config, haproxy_config()).map_err(|e| cannot_write(&config, &e))?;
        let haproxy = start_proxy(&bed, ["haproxy", "-db", "-f"], &config, HAPROXY, &mut others)?;
        let config = write_nginx_config(bed.path(), &nginx_config())?;
        let nginx = start_proxy(&bed, ["nginx", "-q", "-c"], &config, NGINX, &mut others)?;
        Ok(Self { servers: [ours, haproxy, nginx], _others: others, bed })
    }

    /// Returns the proxies.
    pub(super) const fn servers(&self) -> &[LiveServer; 3] {
        &self.servers
    }

    /// Returns the numbers of connections of `outboard proxy` that the device and the host relayed.
    pub(super) fn relayed(&self) -> Result<[u64; 2], Failure> {
        let all = counters(&self.bed, &self.servers[0], "proxy")?;
        let count = |name: &str| all["host"]["q0"][name].as_u64().unwrap_or(0);
        Ok([count("proxy_spliced"), count("proxy_relayed")])
    }
}

/// Starts nginx with the files as a backend, on the client's core, in the namespace of a process.
fn start_backend(bed: &LiveTestbed, name: &str, namespace: u32) -> Result<Process, Failure> {
    let folder = bed.path().join(format!("backend-{name}"));
    fs::create_dir(&folder).map_err(|e| cannot_write(&folder, &e))?;
    let log = folder.join("log");
    let config = write_nginx_config(&folder, &backend_config(&bed.site()))?;
    let mut command = command_in_namespace(namespace, "taskset");
    command.arg("--cpu-list").arg(bed.client_cores.to_string());
    command.args(["setpriv", "--pdeathsig", "KILL", "nginx", "-e"]).arg(&log);
    command.arg("-c").arg(&config).stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    wait_until("the backend", &log, || is_listening(namespace, BACKEND_PORT))?;
    Ok(process)
}

fn start_proxy(
    bed: &LiveTestbed,
    [name, options @ ..]: [&str; 3],
    config: &Path,
    link: VethLink,
    others: &mut Vec<Process>,
) -> Result<LiveServer, Failure> {
    let arguments = options.map(Path::new).into_iter().chain([config]);
    // The proxies listen on any address, so they are ready before their interfaces exist.
    let process = start_third_party(bed, Path::new(name), arguments, |pid| is_listening(pid, 80))?;
    let server = link_client_namespace(bed, process, link)?;
    others.push(start_backend(bed, name, server.client_namespace())?);
    Ok(server)
}

/// Returns a configuration of HAProxy with one thread, which splices in the kernel if it expects a
/// gain.
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

/// Returns a configuration of nginx that keeps connections to the backend open.
fn nginx_config() -> String {
    let backend = NGINX.client;
    format!(
        "  upstream backend {{
    server {backend}:{BACKEND_PORT}; keepalive 256; keepalive_requests 1000000000;
  }}
  server {{
    listen 0.0.0.0:80 backlog=65535 reuseport;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffers 8 64k; proxy_buffer_size 64k;
    }}
  }}"
    )
}

/// Returns a configuration of nginx that serves the files at the least cost.
fn backend_config(site: &Path) -> String {
    let site = site.display();
    format!(
        "{NGINX_FILES}
  server {{ listen 0.0.0.0:{BACKEND_PORT} backlog=65535 reuseport; root {site}; }}"
    )
}
