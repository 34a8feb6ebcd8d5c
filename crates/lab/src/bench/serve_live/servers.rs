//! The two servers in their network namespaces, and the files that they serve.
//!
//! nginx's namespace is linked to its client's by a pair of virtual Ethernet interfaces, with the
//! kernel's default offloads and MTU. [`outboard`] describes ours.
//!
//! [`outboard`]: crate::bench::live::outboard

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use crate::bench::live::LoadRow;
use crate::bench::live::environment::{
    CERT, KEY, LiveServer, LiveTestbed, NGINX_FILES, Process, VethLink, cannot_write,
    command_in_namespace, is_listening, link_client_namespace, log_file, spawn, start_third_party,
    wait_until, write_certificate, write_nginx_config,
};
use crate::bench::live::outboard::{LiveLink, OUTBOARD, in_namespace_of, start_outboard};
use crate::bench::live::tools::output;
use cli::Failure;

const NGINX: VethLink =
    VethLink { client: Ipv4Addr::new(10, 78, 0, 1), server: Ipv4Addr::new(10, 78, 0, 2) };

/// Names of the control sockets of our servers.
const HTTP: &str = "http";
const HTTPS: &str = "https";

/// nginx and its link.
pub(crate) struct Nginx {
    server: LiveServer,
    /// The system's default congestion control.
    congestion: String,
}

impl Nginx {
    pub(crate) const fn server(&self) -> &LiveServer {
        &self.server
    }

    /// Returns the system's default congestion control.
    pub(super) fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Sets the congestion control of new connections, by the route to the client.
    pub(super) fn set_congestion(&self, name: &str) -> Result<(), Failure> {
        let net = "10.78.0.0/24";
        let route = ["route", "replace", net, "dev", "server", "proto", "kernel", "scope", "link"];
        let source = NGINX.server.to_string();
        let rest = ["src", &source, "congctl", name];
        output(command_in_namespace(self.server.pid(), "ip").args(route).args(rest)).map(drop)
    }
}

/// All processes, and the folder.
pub(crate) struct ServeLiveServers {
    // Dropped in this order: the servers before their folder.
    plain: LiveServer,
    /// A second instance, in a namespace of its own, that serves HTTPS.
    secure: LiveServer,
    pub(crate) nginx: Nginx,
    pub(crate) bed: LiveTestbed,
}

impl ServeLiveServers {
    /// Starts all servers on the cores of the testbed and waits until they listen.
    pub(crate) fn start(
        bed: LiveTestbed,
        link: LiveLink,
        serve_options: &[String],
    ) -> Result<Self, Failure> {
        let (cert, key) = write_certificate(bed.path())?;
        let site = bed.site().to_string_lossy().into_owned();
        let start = |name: &str, options: &[String]| {
            let arguments = [&["serve".to_owned(), site.clone()], options].concat();
            start_outboard(&bed, name, &arguments, (link, OUTBOARD))
        };
        let plain = start(HTTP, serve_options)?;
        let tls = ["--tls", "--tls-cert", &cert, "--tls-key", &key].map(str::to_owned);
        let secure = start(HTTPS, &[&tls[..], serve_options].concat())?;
        let nginx = start_nginx(&bed)?;
        Ok(Self { plain, secure, nginx, bed })
    }

    /// Returns our servers, with the names of their control sockets.
    pub(crate) fn ours(&self) -> [(&'static str, &LiveServer); 2] {
        [(HTTP, &self.plain), (HTTPS, &self.secure)]
    }

    /// Returns our server for a row.
    pub(crate) const fn outboard(&self, row: LoadRow) -> &LiveServer {
        if row.tls { &self.secure } else { &self.plain }
    }
}

/// Starts nginx over HTTP and HTTPS, with a process for each core; the processes listen with
/// `SO_REUSEPORT`. Without kernel TLS it cannot use sendfile over TLS, so it
/// reads files in chunks of 256 KiB and sends records of 16 KiB.
fn start_nginx(bed: &LiveTestbed) -> Result<Nginx, Failure> {
    let (folder, site) = (bed.path().display(), bed.site());
    let site = site.display();
    let http = format!(
        "{NGINX_FILES}
  ssl_certificate {folder}/{CERT}; ssl_certificate_key {folder}/{KEY};
  ssl_protocols TLSv1.2 TLSv1.3; ssl_buffer_size 16k; ssl_session_cache shared:a:10m;
  output_buffers 2 256k;
  server {{ listen 0.0.0.0:80 backlog=65535 reuseport; root {site}; }}
  server {{ listen 0.0.0.0:443 ssl backlog=65535 reuseport; root {site}; }}"
    );
    let config = write_nginx_config(bed.path(), &http)?;
    let log = bed.path().join("nginx.log");
    let arguments = [Path::new("-e"), &log, Path::new("-c"), &config];
    // It listens on any address, so it is ready before its interface exists.
    let process =
        start_third_party(bed, Path::new("nginx"), arguments, |pid| is_listening(pid, 80))?;
    let mut server = link_client_namespace(bed, process, NGINX)?;
    for index in 1..bed.server_cores.0.len() {
        server.others.push(start_further_nginx(bed, server.pid(), index, &http)?);
    }
    let sysctl = "/proc/sys/net/ipv4/tcp_congestion_control";
    let congestion =
        output(command_in_namespace(server.pid(), "cat").arg(sysctl))?.trim().to_owned();
    Ok(Nginx { server, congestion })
}

/// Starts another process of nginx in the namespace of the first one.
fn start_further_nginx(
    bed: &LiveTestbed,
    namespace: u32,
    index: usize,
    http: &str,
) -> Result<Process, Failure> {
    let folder = bed.path().join(format!("nginx-{index}"));
    fs::create_dir(&folder).map_err(|e| cannot_write(&folder, &e))?;
    let log = folder.join("log");
    let config = write_nginx_config(&folder, http)?;
    let mut command = in_namespace_of(namespace, &bed.server_cores, Path::new("nginx"));
    command.arg("-e").arg(&log).arg("-c").arg(&config);
    command.stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    let name = process.0.id();
    wait_until("nginx", &log, || has_listener(name))?;
    Ok(process)
}

/// Returns whether a process has its listening sockets: nginx opens its event queue after them.
fn has_listener(pid: u32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = open.filter_map(|file| fs::read_link(file.path()).ok());
    targets.into_iter().any(|target| target.to_string_lossy().contains("[eventpoll]"))
}
