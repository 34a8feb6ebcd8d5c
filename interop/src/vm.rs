//! A virtual machine with a Linux kernel, whose NVMe/TCP initiator and target are tested against
//! ours.
//!
//! `scripts/setup.sh test` takes the kernel of Debian 13 and makes an initramfs of busybox, a few
//! modules, and the programs for NVMe over TLS (`interop/vm`). The machine runs without hardware
//! acceleration, boots in seconds, has a network interface that a TAP device connects to the test's
//! namespace, and runs one shell script.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::tool;

/// The machine's address.
pub const VM_ADDR: &str = "10.79.0.2";
/// Address of the namespace's end of the link.
const GATEWAY_CIDR: &str = "10.79.0.1/24";
const TAP: &str = "vm0";

/// Script for Linux with a connected namespace: reads, writes, a discard, a file system with trim,
/// and an orderly disconnect.
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

/// Time limit that no working script reaches.
const WATCHDOG: Duration = Duration::from_secs(240);

/// A running virtual machine.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    lines: Receiver<String>,
    /// Console output so far.
    said: String,
}

impl Vm {
    /// Starts a machine that runs `script`. `command` returns a command in the test's namespace.
    ///
    /// # Panics
    /// If it cannot be started.
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
        // The kernel accepts concatenated archives, each at a multiple of four bytes.
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

    /// Waits for a line that begins with `start`; returns the rest of that line.
    ///
    /// # Panics
    /// If the machine ends earlier, or prints nothing for four minutes.
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

    /// Waits until the script has succeeded; returns the console output.
    ///
    /// # Panics
    /// If the script failed.
    #[must_use]
    pub fn finish(mut self) -> String {
        let status = self.wait_for("vm: ended");
        assert_eq!(status, "0", "{}", self.said);
        core::mem::take(&mut self.said)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of a file made by the set-up script.
fn linux(name: &str) -> PathBuf {
    // Relative to cargo's target folder.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    target.join("linux").join(name)
}

/// Returns an archive with one file in cpio's "newc" format, which the kernel expects: every field
/// in hexadecimal digits, and everything padded to four bytes.
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
