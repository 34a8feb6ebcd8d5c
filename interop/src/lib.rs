//! Common parts of the tests with real programs: network namespaces, the server as a child process,
//! curl, files, and Linux in a virtual machine.
//!
//! Called by `interop/tests`. The tests run the program as users do, and talk to it with
//! third-party programs over a TAP device and the kernel's TCP. Each test has a network namespace
//! of its own, so that all can run at the same time and none needs the machine's network; without
//! root, it has a user namespace too. Every process that is started here is killed by its process
//! number, or ends with the test's process; every file is in a folder that is removed with the
//! test.
//!
//! Helpers panic on errors. Nothing here sleeps for a fixed time: helpers wait for a line of
//! output, an end of file or the end of a child, and time limits only prevent that a broken program
//! blocks forever.
#![forbid(unsafe_code)]

mod certificate;
pub mod counters;
mod curl;
mod daemon;
mod device_fixture;
mod device_process;
mod ethernet_fixture;
mod files;
mod linux_target;
mod netns;
mod nvme;
pub mod quic;
mod relay;
mod server;
pub mod tls_client;
mod tool;
mod vm;

pub use certificate::make_certificate;
pub use counters::Counters;
pub use curl::{Download, PausedDownload, Response, Url, fetch_sha256};
pub use daemon::ThirdPartyServer;
pub use device_fixture::DeviceFixture;
pub use device_process::{SplitArguments, has_device_process, split_arguments};
pub use ethernet_fixture::EthernetFixture;
pub use files::{Files, pattern, sha256};
pub use linux_target::{LINUX_NQN, LinuxTarget, tls_key_script};
pub use netns::Netns;
pub use nvme::{fio_report, namespace_server, nvme_initiator, nvme_target, nvme_target_of_file};
pub use relay::{RelayLink, RelayLinkConfig, RelayLinkCounts};
pub use server::{ADDR, PEER, ServerExit, TestServer, outboard, outboard_lab, program};
pub use tool::{
    Watchdog, expect_success, interface_bytes, output_text, run, run_for_output,
    wait_with_time_limit, with_clients,
};
pub use vm::{NVME_WORK, VM_ADDR, Vm};
