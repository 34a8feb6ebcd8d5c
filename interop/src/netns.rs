//! A private network namespace, and commands in it.
//!
//! A thread of a multithreaded process cannot enter a user namespace, and moving test threads into
//! namespaces would need `unsafe`. Instead, a child process holds the namespace, and commands join
//! it through the child's entry in `/proc` (`nsenter`). The holder reads from a pipe that this
//! process keeps open: when this process ends for any reason, the holder reads an end of file and
//! exits, and the namespace ends with its last process.

use crate::tool;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A network namespace of a test; without root, in a user namespace of its own.
#[derive(Debug)]
pub struct Netns {
    holder: Child,
    has_user_namespace: bool,
}

impl Netns {
    /// Creates a namespace whose loopback interface is up.
    ///
    /// # Panics
    /// If the system refuses: in a container without the right, or if user namespaces are disabled.
    #[must_use]
    pub fn new() -> Self {
        let has_user_namespace = !tool::is_root();
        let kinds = if has_user_namespace { "-rn" } else { "-n" };
        let mut holder = tool::command("unshare")
            .args([kinds, "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run unshare: {e}; `make setup` installs it"));
        let mut line = String::new();
        let stdout = holder.stdout.as_mut().map(BufReader::new);
        let read = stdout.and_then(|mut stdout| stdout.read_line(&mut line).ok());
        assert!(
            read.is_some() && line == "ready\n",
            "cannot make a network namespace (`unshare {kinds}`): run the tests as root"
        );
        Self { holder, has_user_namespace }
    }

    /// Returns the number of a process in the namespace, by which `ip link` names it.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.holder.id()
    }

    /// Enables IPv4 forwarding in the namespace's kernel.
    ///
    /// # Panics
    /// If that fails.
    pub fn enable_ipv4_forwarding(&self) {
        tool::run_for_output(
            self.command("sh").args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]),
        );
    }

    /// Returns a command that runs in the namespace. The child's process number is that of the
    /// program, because each wrapper executes the next one. The child is killed if the thread that
    /// spawned it ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tool::command("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net"]);
        if self.has_user_namespace {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--", "setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
        command
    }
}

impl Default for Netns {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The holder waits for this end of file.
        drop(self.holder.stdin.take());
        // An error means that it has ended already.
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(command: &mut Command) -> String {
        String::from_utf8_lossy(&tool::run(command).stdout).trim().to_owned()
    }

    #[test]
    fn commands_run_inside_with_loopback_up() {
        let netns = Netns::new();
        let namespace = |command: &mut Command| printed(command.arg("/proc/self/ns/net"));
        let inside = namespace(&mut netns.command("readlink"));
        assert!(inside.starts_with("net:["), "{inside}");
        assert_ne!(inside, namespace(&mut tool::command("readlink")));
        // Only the owner of the network namespace may do this, whichever user runs the tests.
        let link = netns.command("ip").args(["tuntap", "add", "t0", "mode", "tap"]).status();
        assert!(link.is_ok_and(|status| status.success()));
        let links = printed(netns.command("ip").args(["-o", "link"]));
        assert!(links.contains("lo: <LOOPBACK,UP") && links.contains("t0: "), "{links}");
        assert_eq!(links.lines().count(), 2, "{links}");
    }

    #[test]
    fn process_id_is_the_programs_own() {
        let netns = Netns::new();
        let child = netns
            .command("sh")
            .args(["-c", "echo $$"])
            .stdout(Stdio::piped())
            .spawn()
            .and_then(|child| Ok((child.id(), child.wait_with_output()?)));
        let (pid, output) = child.expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), pid.to_string());
    }

    #[test]
    fn namespace_goes_with_its_owner() {
        let netns = Netns::new();
        let entry = format!("/proc/{}", netns.holder.id());
        assert!(std::path::Path::new(&entry).exists());
        drop(netns);
        assert!(!std::path::Path::new(&entry).exists());
    }
}
