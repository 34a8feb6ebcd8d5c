//! Three network namespaces: clients, a DPU with a device process, and a host with its programs.
//!
//! Clients and DPU are joined by one veth pair, DPU and host by another one, over which the carrier
//! of `outboard nic` runs, or by two TAP interfaces that the program `framerelay` joins.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use crate::device_process::link_address;
use crate::{Files, Netns, TestServer, run_for_output};

/// Interface of the clients, with 10.77.0.1, and the DPU's towards them.
const CLIENT_SCRIPT: &str = "ip link add c0 type veth peer name d0 netns DPU && \
                             ip link set c0 up && ip addr add 10.77.0.1/24 dev c0";
/// The host's interface towards the DPU, and the DPU's.
const HOST_SCRIPT: &str = "ip link add h0 type veth peer name d1 netns DPU && ip link set h0 up";

/// The namespaces, files, and a folder for sockets.
#[derive(Debug)]
pub struct EthernetFixture {
    /// The namespace of clients.
    pub client: Arc<Netns>,
    /// The namespace of devices.
    pub dpu: Arc<Netns>,
    /// The namespace of programs.
    pub host: Arc<Netns>,
    /// Files that programs may serve; both machines have them.
    pub files: Files,
    /// Folder for sockets.
    pub scratch: Files,
    relay: Option<Child>,
}

impl EthernetFixture {
    /// Creates the namespaces, and files in a folder of `parent`.
    ///
    /// # Panics
    /// If they cannot be created.
    #[must_use]
    pub fn new(parent: &str) -> Self {
        let fixture = Self::without_host_link(parent);
        let script = HOST_SCRIPT.replace("DPU", &fixture.dpu.process_id().to_string());
        run_for_output(fixture.host.command("sh").args(["-c", &script]));
        run_for_output(fixture.dpu.command("ip").args(["link", "set", "d1", "up"]));
        fixture
    }

    /// As [`Self::new`], with faults between DPU and host: those of `framerelay`, the program's
    /// path, with its last four arguments.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn with_faults(parent: &str, framerelay: &str, faults: [&str; 4]) -> Self {
        let mut fixture = Self::without_host_link(parent);
        let mut relay = fixture.dpu.command(framerelay);
        relay.args(["d1", "h0"]).args(faults).stdout(Stdio::piped());
        let mut relay = relay.spawn().expect("framerelay");
        let mut line = String::new();
        let stdout = relay.stdout.as_mut().map(BufReader::new);
        let read = stdout.and_then(|mut stdout| stdout.read_line(&mut line).ok());
        assert!(read.is_some() && line == "ready\n", "framerelay: {line}");
        fixture.relay = Some(relay);
        let host = fixture.host.process_id().to_string();
        run_for_output(fixture.dpu.command("ip").args(["link", "set", "h0", "netns", &host]));
        run_for_output(fixture.host.command("ip").args(["link", "set", "h0", "up"]));
        run_for_output(fixture.dpu.command("ip").args(["link", "set", "d1", "up"]));
        fixture
    }

    fn without_host_link(parent: &str) -> Self {
        let netns = || Arc::new(Netns::new());
        let (client, dpu, host) = (netns(), netns(), netns());
        let script = CLIENT_SCRIPT.replace("DPU", &dpu.process_id().to_string());
        run_for_output(client.command("sh").args(["-c", &script]));
        run_for_output(dpu.command("ip").args(["link", "set", "d0", "up"]));
        // The path of a Unix socket has at most 107 bytes.
        let scratch = Files::new("/tmp");
        Self { client, dpu, host, files: Files::new(parent), scratch, relay: None }
    }

    /// Returns the link address of the DPU's interface towards the host.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn dpu_address(&self) -> String {
        link_address(&self.dpu, "d1")
    }

    /// Starts the device, with the files as root `site`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn nic(&self, options: &[&str]) -> TestServer {
        let root = format!("site={}", self.files.path().display());
        let args = ["nic", "--link", "packet:d0", "--root", &root, "--listen-ether", "d1"];
        TestServer::device(Arc::clone(&self.dpu), &[&args, options].concat())
    }

    /// Starts a program on the host that is attached to the device.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn program(&self, args: &[&str]) -> TestServer {
        let network: &[&str] =
            if args.contains(&"--addr") { &[] } else { &["--addr", "10.77.0.2/24"] };
        let nic = format!("ether:h0,{}", self.dpu_address());
        TestServer::attached(Arc::clone(&self.host), &[args, &["--nic", &nic], network].concat())
    }

    /// Starts a content server on 10.77.0.2 that is attached to the device.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn serve(&self, options: &[&str]) -> TestServer {
        let folder: &Path = self.files.path();
        let folder = folder.to_string_lossy().into_owned();
        self.program(&[&["serve", &folder, "--nic-root", "site"], options].concat())
    }
}

impl Drop for EthernetFixture {
    fn drop(&mut self) {
        if let Some(relay) = &mut self.relay {
            // An error means that it has ended already.
            let _ = relay.kill();
            let _ = relay.wait();
        }
    }
}
