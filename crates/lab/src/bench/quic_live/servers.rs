//! The two servers in their network namespaces, and the client.
//!
//! quinn's namespace is linked to its client's by a pair of virtual Ethernet interfaces, with the
//! kernel's default offloads and MTU. [`outboard`] describes ours.
//!
//! [`outboard`]: crate::bench::live::outboard

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Stdio;

use crate::bench::live::LoadRow;
use crate::bench::live::environment::{
    LiveServer, LiveTestbed, VethLink, command_in_namespace, in_new_namespace,
    link_client_namespace, log_file, spawn, wait_for_line,
};
use crate::bench::live::load::{self, LoadRun};
use crate::bench::live::outboard::{LiveLink, OUTBOARD, counters, program_of_interop, start_http3};
use cli::Failure;

const QUINN: VethLink =
    VethLink { client: Ipv4Addr::new(10, 78, 0, 1), server: Ipv4Addr::new(10, 78, 0, 2) };
/// Name of our server's control socket.
const NAME: &str = "http3";

/// All processes, and the folder.
pub(super) struct QuicLiveServers {
    // Dropped in this order: the servers before their folder.
    pub(super) outboard: LiveServer,
    pub(super) quinn: LiveServer,
    pub(super) bed: LiveTestbed,
    client: PathBuf,
}

/// QUIC work that our device has done.
#[derive(Clone, Copy)]
pub(super) struct ByDevice {
    /// Datagrams that it encrypted.
    pub(super) sealed: u64,
    /// Datagrams that it decrypted.
    pub(super) opened: u64,
    /// File bytes that it put into datagrams.
    pub(super) file_bytes: u64,
    /// All datagrams that our server sent, encrypted by device or host.
    pub(super) datagrams: u64,
}

impl QuicLiveServers {
    /// Writes the files, starts both servers and waits until they listen.
    pub(super) fn start(
        rows: &[LoadRow],
        link: LiveLink,
        options: &[String],
    ) -> Result<Self, Failure> {
        let [server, client] = [program_of_interop("h3serve")?, program_of_interop("h3load")?];
        let bed = LiveTestbed::new(rows)?;
        let (outboard, files) = start_http3(&bed, NAME, options, (link, OUTBOARD))?;
        let log = bed.path().join("quinn.log");
        let mut command = in_new_namespace(&bed.server_cores, &server);
        command.arg("0.0.0.0:443").arg(bed.site()).args(files);
        command.stdout(Stdio::piped()).stderr(log_file(&log)?);
        let mut process = spawn(&mut command)?;
        wait_for_line(&mut process, "ready", "h3serve", &log)?;
        let quinn = link_client_namespace(&bed, process, QUINN)?;
        Ok(Self { outboard, quinn, bed, client })
    }

    /// Runs the client for a number of seconds.
    pub(super) fn run(
        &self,
        server: &LiveServer,
        row: LoadRow,
        seconds: u32,
    ) -> Result<LoadRun, Failure> {
        let mut command = command_in_namespace(server.client_namespace(), "taskset");
        command.arg("--cpu-list").arg(self.bed.client_cores.to_string()).arg(&self.client);
        command.arg(format!("{}:443", server.addr)).arg(format!("/{}", row.name));
        command.args([row.connections, row.streams, seconds].map(|n| n.to_string()));
        load::measure(&mut command, server, &self.bed, row)
    }

    /// Returns the work that our device has done until now.
    pub(super) fn by_device(&self) -> Result<ByDevice, Failure> {
        let all = counters(&self.bed, &self.outboard, NAME)?;
        let count = |side: &str, name: &str| all[side]["q0"][name].as_u64().unwrap_or(0);
        Ok(ByDevice {
            sealed: count("nic", "quic_tx_sealed"),
            opened: count("nic", "quic_rx_opened"),
            file_bytes: count("host", "quic_file_bytes_offloaded"),
            datagrams: count("host", "quic_out_datagrams"),
        })
    }
}
