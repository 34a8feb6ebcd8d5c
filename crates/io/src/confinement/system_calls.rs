//! System calls that the process may make, enforced by seccomp (seccomp(2)).
//!
//! A call that is not listed fails with EPERM, so that a code path that was forgotten reports an
//! error instead of ending the process. The list has what links, disks, sockets, threads and the
//! allocator need after the start. It has no call that starts a program, loads code, changes users,
//! namespaces or mounts, traces or reaches into another process, or changes the kernel.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, BpfProgramRef, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter_all_threads,
};

use super::ConfinementError;

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Calls that are allowed whatever their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Files and descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_copy_file_range,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_umask,
    libc::SYS_getcwd,
    // Sockets.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_munlock,
    // Threads, time and signals.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_BY_ARCHITECTURE: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_inotify_init,
    libc::SYS_eventfd,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BY_ARCHITECTURE: &[libc::c_long] = &[];

/// Families of sockets: those of control, links and name resolution.
const SOCKET_FAMILIES: [u64; 6] = [
    libc::AF_UNIX as u64,
    libc::AF_INET as u64,
    libc::AF_INET6 as u64,
    libc::AF_NETLINK as u64,
    libc::AF_PACKET as u64,
    libc::AF_XDP as u64,
];

/// Requests by which a process types into the terminal that it was started from.
const TERMINAL_INPUT: [u64; 2] = [libc::TIOCSTI, TIOCLINUX];
const TIOCLINUX: u64 = 0x541c;

/// Options of prctl(2): the name of a thread, and the name of an anonymous mapping.
const PRCTL_OPTIONS: [u64; 2] = [libc::PR_SET_NAME as u64, libc::PR_SET_VMA as u64];

/// Answer to a call that is not listed, and to one that the kernel seems not to have.
const DENIED: SeccompAction = SeccompAction::Errno(libc::EPERM as u32);
/// See [`DENIED`].
const MISSING: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);

/// Restricts all threads of the process to the calls that this module lists, and forbids to gain
/// privileges. With `opens_bpf_links` bpf(2) is allowed, for links that load programs when they are
/// opened again; it needs capabilities.
///
/// # Errors
/// If the kernel has no seccomp filters, or there is none for this architecture.
pub fn restrict_system_calls(opens_bpf_links: bool) -> Result<(), ConfinementError> {
    install(opens_bpf_links, apply_filter_all_threads)
}

fn install(
    opens_bpf_links: bool,
    apply: impl Fn(BpfProgramRef<'_>) -> Result<(), seccompiler::Error>,
) -> Result<(), ConfinementError> {
    // glibc creates threads with clone if there is no clone3, whose flags a filter cannot see.
    let clone3 = [(libc::SYS_clone3, vec![])].into();
    let clone3 = filter(clone3, SeccompAction::Allow, MISSING)?;
    let mut rules = rules()?;
    if opens_bpf_links {
        rules.insert(libc::SYS_bpf, vec![]);
    }
    let calls = filter(rules, DENIED, SeccompAction::Allow)?;
    apply(&clone3)?;
    Ok(apply(&calls)?)
}

/// Returns a filter that answers calls which match a rule with `matched`, and others with `other`.
fn filter(
    rules: Rules,
    other: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, ConfinementError> {
    let arch = std::env::consts::ARCH.try_into().map_err(|_| ConfinementError::Architecture)?;
    let filter = SeccompFilter::new(rules, other, matched, arch);
    Ok(filter.and_then(TryInto::try_into).map_err(seccompiler::Error::Backend)?)
}

fn rules() -> Result<Rules, seccompiler::Error> {
    let allowed = ALLOWED.iter().chain(ALLOWED_BY_ARCHITECTURE);
    let mut rules: Rules = allowed.map(|&call| (call, vec![])).collect();
    let families = SOCKET_FAMILIES.map(|family| argument(0, SeccompCmpOp::Eq, family));
    rules.insert(libc::SYS_socket, any_of(families)?);
    let options = PRCTL_OPTIONS.map(|option| argument(0, SeccompCmpOp::Eq, option));
    rules.insert(libc::SYS_prctl, any_of(options)?);
    let requests = TERMINAL_INPUT.map(|request| argument(1, SeccompCmpOp::Ne, request));
    rules.insert(libc::SYS_ioctl, vec![all_of(requests)?]);
    // No memory is made executable.
    let executable = libc::PROT_EXEC as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let plain = argument(2, SeccompCmpOp::MaskedEq(executable), 0);
        rules.insert(call, any_of([plain])?);
    }
    // Threads, no processes.
    let thread = libc::CLONE_THREAD as u64;
    let thread = argument(0, SeccompCmpOp::MaskedEq(thread), thread);
    rules.insert(libc::SYS_clone, any_of([thread])?);
    Ok(rules)
}

type Condition = Result<SeccompCondition, seccompiler::Error>;

/// Compares the lower half of an argument, which is all of it for the calls above.
fn argument(index: u8, op: SeccompCmpOp, value: u64) -> Condition {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
        .map_err(seccompiler::Error::Backend)
}

/// Returns a rule that matches if all conditions hold.
fn all_of<const N: usize>(conditions: [Condition; N]) -> Result<SeccompRule, seccompiler::Error> {
    let conditions = conditions.into_iter().collect::<Result<_, _>>()?;
    SeccompRule::new(conditions).map_err(seccompiler::Error::Backend)
}

/// Returns rules of which one matches if any of the conditions holds.
fn any_of<const N: usize>(
    conditions: [Condition; N],
) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    conditions.into_iter().map(|condition| all_of([condition])).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::thread;

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    /// A thread with the filter does what stacks do, and nothing that the list leaves out.
    #[test]
    fn only_listed_calls_are_made() {
        let confined = || {
            install(false, seccompiler::apply_filter).unwrap();
            File::open("/dev/null").unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
            let denied =
                |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            denied(Command::new("/bin/true").spawn().unwrap_err());
            let other = AddressFamily::from_raw(38); // AF_ALG
            denied(rustix::net::socket(other, SocketType::SEQPACKET, None).unwrap_err().into());
            denied(std::os::unix::fs::chroot("/").unwrap_err());
        };
        thread::spawn(confined).join().unwrap();
        assert!(Command::new("/bin/true").status().unwrap().success(), "other threads may");
    }
}
