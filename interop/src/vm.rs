//! A virtual machine with a kernel that we did not write: its NVMe/TCP initiator and target are
//! what ours have to get on with.
//!
//! `scripts/setup.sh test` takes the kernel of Debian 13 and makes an initramfs of busybox, a few
//! modules, and what NVMe over TLS needs (`interop/vm`). It runs without acceleration, in seconds,
//! has a network interface that is connected to the test's namespace by a TAP device, and runs one
//! shell script.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::tool;

/// The machine's address.
pub const VM_ADDR: &str = "10.79.0.2";
/// The namespace's end of its link.
const GATEWAY_CIDR: &str = "10.79.0.1/24";
const TAP: &str = "vm0";

/// What Linux does with a namespace that it has connected: reads, writes, a discard, a file system
/// that is trimmed; and an orderly end.
pub const NVME_WORK: &str = "\
    dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null\n\
    dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct 2>/dev/null\n\
    dd if=/dev/nvme0n1 of=/tmp/back bs=256k count=32 iflag=direct 2>/dev/null\n\
    cmp /tmp/data /tmp/back\n\
    dd if=/dev/nvme0n1 of=/tmp/back bs=4k skip=100 count=500 iflag=direct 2>/dev/null\n\
    dd if=/tmp/data of=/tmp/part bs=4k skip=100 count=500 2>/dev/null\n\
    cmp /tmp/part /tmp/back\n\
    blkdiscard -o 0 -l 1048576 /dev/nvme0n1\n\
    dd if=/dev/zero of=/tmp/part bs=1M count=1 2>/dev/null\n\
    dd if=/dev/nvme0n1 of=/tmp/back bs=1M count=1 iflag=direct 2>/dev/null\n\
    cmp /tmp/part /tmp/back\n\
    mke2fs -b 4096 /dev/nvme0n1 >/dev/null\n\
    mount -t ext4 /dev/nvme0n1 /mnt\n\
    cp /tmp/data /mnt/data\n\
    sync\n\
    umount /mnt\n\
    mount -t ext4 /dev/nvme0n1 /mnt\n\
    cmp /tmp/data /mnt/data\n\
    rm /mnt/data\n\
    fstrim /mnt\n\
    umount /mnt\n\
    echo 1 >/sys/class/nvme/nvme0/delete_controller\n";

/// Longer than any script takes that works.
const WATCHDOG: Duration = Duration::from_secs(240);

/// A running machine.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    lines: Receiver<String>,
    /// All that it has said.
    said: String,
}

impl Vm {
    /// Starts a machine that runs `script`. `command` makes a command in the test's namespace.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn start(command: impl Fn(&str) -> Command, scratch: &Path, script: &str) -> Self {
        let link = format!(
            "echo 1 >/proc/sys/net/ipv4/ip_forward && ip tuntap add mode tap {TAP} && \
             ip addr add {GATEWAY_CIDR} dev {TAP} && ip link set {TAP} up"
        );
        let made = tool::run(command("sh").args(["-c", &link]));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let (kernel, initramfs) = (linux("vmlinuz"), scratch.join("initramfs"));
        let mut archive = std::fs::read(linux("initramfs.gz")).unwrap_or_else(|e| {
            panic!("{}: {e}; run `make setup`", linux("initramfs.gz").display())
        });
        // The kernel takes archives one after another, each at a multiple of four bytes.
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(&cpio("run.sh", script.as_bytes()));
        std::fs::File::create(&initramfs)
            .and_then(|mut file| file.write_all(&archive))
            .expect("the scratch folder can be written");
        let netdev = format!("tap,id=net,ifname={TAP},script=no,downscript=no");
        let mut qemu = command("qemu-system-x86_64");
        qemu.args(["-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "384"]);
        qemu.args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        qemu.args(["-append", "console=ttyS0 quiet panic=-1", "-netdev", &netdev]);
        qemu.args(["-device", "virtio-net-pci,netdev=net"]);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = qemu.spawn().unwrap_or_else(|e| panic!("cannot run qemu: {e}"));
        let (sender, lines) = channel();
        let stdout = child.stdout.take().expect("it is a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, said: String::new() }
    }

    /// Waits for a line that begins with `start`; gives what follows in it.
    ///
    /// # Panics
    /// Where the machine ends before, or takes minutes.
    pub fn wait_for(&mut self, start: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(WATCHDOG) else {
                panic!("the machine never said `{start}`, but:\n{}", self.said);
            };
            let _ = writeln!(self.said, "{line}");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Waits for the script's end, which has to be a good one; gives all that was said.
    ///
    /// # Panics
    /// Where the script failed.
    #[must_use]
    pub fn finish(mut self) -> String {
        let status = self.wait_for("vm: ended");
        assert_eq!(status, "0", "{}", self.said);
        core::mem::take(&mut self.said)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that the set-up has made.
fn linux(name: &str) -> PathBuf {
    // Tests lie in the folder `tmp` of cargo's target folder, beside it.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    target.join("linux").join(name)
}

/// An archive with one file, in the format that the kernel takes ("newc": every field in
/// hexadecimal digits, everything padded to four bytes).
fn cpio(name: &str, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (inode, name, mode, content) in [(1, name, 0o100_644, content), (2, "TRAILER!!!", 0, &[])] {
        let mut head = String::from("070701");
        let len = content.len();
        for field in [inode, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name.len() + 1, 0] {
            let _ = write!(head, "{field:08x}");
        }
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}
