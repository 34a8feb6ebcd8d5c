//! Scripts for the virtual machine that run Linux's NVMe/TCP target, and the parts of TLS that it
//! needs.

use crate::VM_ADDR;

/// NQN of the target's subsystem.
pub const LINUX_NQN: &str = "nqn.2026-11.org.example:linux";
/// Port at which the machine waits for [`LinuxTarget::with_outage`]'s signals.
const SIGNAL_PORT: u16 = 9000;

/// Returns a script that starts the handshake daemon of the kernel, and adds a key between a host
/// and a subsystem.
#[must_use]
pub fn tls_key_script((host, subsystem): (&str, &str), key: &str, version: u8) -> String {
    format!(
        "set -e\n\
         tlshd -s >/tmp/tlshd.log 2>&1 &\n\
         nvme check-tls-key -i -n {host} -c {subsystem} -I {version} -d {key}\n"
    )
}

/// Linux's target on a loop device of zeros.
#[derive(Clone, Copy, Debug)]
pub struct LinuxTarget {
    /// Size of the namespace in MiB.
    pub mebibytes: u32,
    /// Accept only connections with a key ([`tls_key_script`]).
    pub tls: bool,
}

impl LinuxTarget {
    /// Returns the script. It prints `target: ready`, and then waits.
    #[must_use]
    pub fn script(self) -> String {
        self.start() + "sleep 600\n"
    }

    /// Returns a script as [`Self::script`] whose target goes away at the first signal
    /// ([`Self::signal_script`]), with all its connections, and returns at the second. It prints
    /// `target: gone` and `target: back`.
    #[must_use]
    pub fn with_outage(self) -> String {
        let subsystems = "/sys/kernel/config/nvmet/ports/1/subsystems";
        let wait = format!("nc -l -p {SIGNAL_PORT} </dev/null >/dev/null");
        format!(
            "{}\
             {wait}\n\
             rm {subsystems}/{LINUX_NQN}\n\
             echo target: gone\n\
             {wait}\n\
             ln -s /sys/kernel/config/nvmet/subsystems/{LINUX_NQN} {subsystems}/\n\
             echo target: back\n\
             sleep 600\n",
            self.start()
        )
    }

    /// Returns a script for bash in the test's namespace that sends a signal to the machine.
    #[must_use]
    pub fn signal_script() -> String {
        format!("until exec 3<>/dev/tcp/{VM_ADDR}/{SIGNAL_PORT}; do sleep 0.1; done 2>/dev/null")
    }

    fn start(self) -> String {
        let Self { mebibytes, tls } = self;
        let secure = if tls {
            "echo tls1.3 >addr_tsas\n\
             echo required >addr_treq\n\
             until grep -q linked /tmp/tlshd.log; do sleep 0.1; done\n"
        } else {
            ""
        };
        format!(
            "set -e\n\
             dd if=/dev/zero of=/tmp/disk bs=1M count={mebibytes} 2>/dev/null\n\
             losetup /dev/loop0 /tmp/disk\n\
             cd /sys/kernel/config/nvmet\n\
             mkdir subsystems/{LINUX_NQN}\n\
             mkdir subsystems/{LINUX_NQN}/namespaces/1\n\
             echo 1 >subsystems/{LINUX_NQN}/attr_allow_any_host\n\
             echo -n /dev/loop0 >subsystems/{LINUX_NQN}/namespaces/1/device_path\n\
             echo 1 >subsystems/{LINUX_NQN}/namespaces/1/enable\n\
             mkdir ports/1\n\
             cd ports/1\n\
             echo tcp >addr_trtype\n\
             echo ipv4 >addr_adrfam\n\
             echo {VM_ADDR} >addr_traddr\n\
             echo 4420 >addr_trsvcid\n\
             {secure}\
             ln -s /sys/kernel/config/nvmet/subsystems/{LINUX_NQN} subsystems/\n\
             echo target: ready\n"
        )
    }
}
