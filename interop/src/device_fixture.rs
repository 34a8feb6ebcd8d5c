//! A namespace in which device processes and their programs run.
//!
//! The interface is one end of a veth pair, which stays when a device process dies.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{Files, Netns, TestServer, run_for_output};

const LINK: &str = "packet:v0";

/// A namespace with a veth pair, files, and a folder for sockets.
#[derive(Debug)]
pub struct DeviceFixture {
    /// The namespace.
    pub netns: Arc<Netns>,
    /// Files that programs may serve.
    pub files: Files,
    /// Folder for sockets.
    pub scratch: Files,
}

impl DeviceFixture {
    /// Creates the namespace, and files in a folder of `parent`. The stack's interface has the
    /// kernel's 10.77.0.1 at the other end.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn new(parent: &str) -> Self {
        let netns = Arc::new(Netns::new());
        let script = "ip link add v0 type veth peer name v1 && \
                      ip link set v0 up && ip link set v1 up && \
                      ip addr add 10.77.0.1/24 dev v1";
        run_for_output(netns.command("sh").args(["-c", script]));
        // The path of a Unix socket has at most 107 bytes.
        let scratch = Files::new("/tmp");
        Self { netns, files: Files::new(parent), scratch }
    }

    /// Returns the path of the socket of the device `name`.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts the device `name`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn nic(&self, name: &str, options: &[&str]) -> TestServer {
        let root = format!("site={}", self.files.path().display());
        let socket = self.socket(name);
        let socket = socket.to_str().expect("UTF-8");
        let args = ["nic", "--link", LINK, "--root", &root, "--listen", socket];
        TestServer::device(Arc::clone(&self.netns), &[&args, options].concat())
    }

    /// Starts a device that takes over from another one.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn nic_in_place_of(&self, device: &TestServer) -> TestServer {
        let root = format!("site={}", self.files.path().display());
        let control = device.control_path().to_str().expect("UTF-8");
        let args = ["nic", "--link", LINK, "--root", &root, "--take-over", control];
        TestServer::device(Arc::clone(&self.netns), &args)
    }

    /// Starts a program that is attached to the first of these devices that is there.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn program(&self, devices: &[&str], args: &[&str]) -> TestServer {
        let network: &[&str] =
            if args.contains(&"--addr") { &[] } else { &["--addr", "10.77.0.2/24"] };
        let unix = |name: &&str| format!("unix:{}", self.socket(name).display());
        let nic = devices.iter().map(unix).collect::<Vec<_>>().join(",");
        TestServer::attached(Arc::clone(&self.netns), &[args, &["--nic", &nic], network].concat())
    }

    /// Starts a content server on 10.77.0.2 that is attached to the first of these devices.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn serve(&self, devices: &[&str], options: &[&str]) -> TestServer {
        let folder = self.files.path().to_string_lossy().into_owned();
        self.program(devices, &[&["serve", &folder], options].concat())
    }
}
