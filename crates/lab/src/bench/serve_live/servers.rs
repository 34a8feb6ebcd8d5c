//! The two servers in their network namespaces, and the files that they serve.
//!
//! nginx's namespace is linked to its client's by a pair of virtual Ethernet interfaces, with the
//! kernel's default offloads and MTU. [`outboard`] describes ours.
//!
//! [`outboard`]: crate::bench::live::outboard

use std::net::Ipv4Addr;
use std::path::Path;

use crate::bench::live::LoadRow;
use crate::bench::live::environment::{
    CERT, KEY, LiveServer, LiveTestbed, NGINX_FILES, VethLink, command_in_namespace, is_listening,
    link_client_namespace, start_third_party, write_certificate, write_nginx_config,
};
use crate::bench::live::outboard::{LiveLink, OUTBOARD, start_outboard};
use crate::bench::live::tools::output;
use cli::Failure;

const NGINX: VethLink =
    VethLink { client: Ipv4Addr::new(10, 78, 0, 1), server: Ipv4Addr::new(10, 78, 0, 2) };

/// nginx and its link.
pub(super) struct Nginx {
    server: LiveServer,
    /// The system's default congestion control.
    congestion: String,
}

impl Nginx {
    pub(super) const fn server(&self) -> &LiveServer {
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
pub(super) struct ServeLiveServers {
    // Dropped in this order: the servers before their folder.
    plain: LiveServer,
    /// A second instance, in a namespace of its own, that serves HTTPS.
    secure: LiveServer,
    pub(super) nginx: Nginx,
    pub(super) bed: LiveTestbed,
}

impl ServeLiveServers {
    /// Writes the files, starts all servers and waits until they listen.
    pub(super) fn start(
        rows: &[LoadRow],
        link: LiveLink,
        serve_options: &[String],
    ) -> Result<Self, Failure> {
        let bed = LiveTestbed::new(rows)?;
        let (cert, key) = write_certificate(bed.path())?;
        let site = bed.site().to_string_lossy().into_owned();
        let start = |name: &str, options: &[String]| {
            let arguments = [&["serve".to_owned(), site.clone()], options].concat();
            start_outboard(&bed, name, &arguments, (link, OUTBOARD))
        };
        let plain = start("http", serve_options)?;
        let tls = ["--tls", "--tls-cert", &cert, "--tls-key", &key].map(str::to_owned);
        let secure = start("https", &[&tls[..], serve_options].concat())?;
        let nginx = start_nginx(&bed)?;
        Ok(Self { plain, secure, nginx, bed })
    }

    /// Returns our server for a row.
    pub(super) const fn outboard(&self, row: LoadRow) -> &LiveServer {
        if row.tls { &self.secure } else { &self.plain }
    }
}

/// Starts nginx over HTTP and HTTPS. Without kernel TLS it cannot use sendfile over TLS, so it
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
    let server = link_client_namespace(bed, process, NGINX)?;
    let sysctl = "/proc/sys/net/ipv4/tcp_congestion_control";
    let congestion =
        output(command_in_namespace(server.pid(), "cat").arg(sysctl))?.trim().to_owned();
    Ok(Nginx { server, congestion })
}
