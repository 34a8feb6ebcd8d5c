//! The thread of a device process that compiles sets of patterns.
//!
//! A large set takes longer than the device's thread may be away from its other programs. This
//! thread compiles the sets of all programs, one after the other. Each program has at most one set
//! here, because its operations wait for it ([`node::pattern_table`]). It delays the sets of other
//! programs by this one, and nothing else.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use cli::Failure;
use io::notify::Notifier;
use node::pattern_table::{PatternCompiler, PatternList};
use patterns::PatternSet;

/// The result of a job: `None` if there was no memory for the set.
type CompiledSet = OnceLock<Option<Arc<PatternSet>>>;

/// A set to compile.
struct PatternJob {
    patterns: PatternList,
    compiled: Arc<CompiledSet>,
    /// Wakes the device's thread.
    notifier: Notifier,
}

/// The thread. It ends when this and all its [`ProgramPatterns`] are dropped.
#[derive(Clone)]
pub(crate) struct PatternThread(Sender<PatternJob>);

impl PatternThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start() -> Result<Self, Failure> {
        let (sender, jobs) = channel();
        drop(crate::spawn("patterns".to_owned(), move || compile_all(&jobs))?);
        Ok(Self(sender))
    }

    /// Returns the compiler of a new program, which wakes the device's thread by `notifier`.
    pub(crate) fn compiler(&self, notifier: Notifier) -> ProgramPatterns {
        ProgramPatterns { jobs: self.0.clone(), notifier, compiled: Arc::default() }
    }
}

fn compile_all(jobs: &Receiver<PatternJob>) {
    for PatternJob { patterns, compiled, notifier: device } in jobs {
        // A program that is gone has dropped its share.
        if Arc::strong_count(&compiled) == 1 {
            continue;
        }
        let set = PatternSet::new(&patterns).ok().map(Arc::new);
        let is_first = compiled.set(set).is_ok();
        debug_assert!(is_first, "each job has a result of its own");
        device.notify();
    }
}

/// Compiles the sets of a program in the thread.
pub(crate) struct ProgramPatterns {
    jobs: Sender<PatternJob>,
    notifier: Notifier,
    compiled: Arc<CompiledSet>,
}

impl PatternCompiler for ProgramPatterns {
    fn start(&mut self, patterns: PatternList) {
        self.compiled = Arc::default();
        let (compiled, notifier) = (Arc::clone(&self.compiled), self.notifier.clone());
        if self.jobs.send(PatternJob { patterns, compiled, notifier }).is_err() {
            // The thread has panicked; the program is expelled, and does not wait in vain.
            let _ = self.compiled.set(None);
        }
    }

    fn is_ready(&self) -> bool {
        self.compiled.get().is_some()
    }

    fn take(&mut self) -> Option<Arc<PatternSet>> {
        self.compiled.get()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use base::Duration;
    use io::notify::Poller;

    use super::*;
    use crate::attach::new_notifier;

    #[test]
    fn sets_are_compiled_and_the_device_is_woken() {
        let thread = PatternThread::start().unwrap();
        let notifier = new_notifier().unwrap();
        let mut program = thread.compiler(notifier.clone());
        assert!(!program.is_ready());
        let mut poller = Poller::new();
        let polled = poller.add(notifier.as_raw_fd());
        // Of a program that is gone: skipped or not, it disturbs nothing.
        thread.compiler(notifier.clone()).start(vec![(*b"gone").into()]);
        for pattern in [&b"pin"[..], b"needle"] {
            program.start(vec![pattern.into()]);
            while !program.is_ready() {
                poller.wait(Some(Duration::from_secs(10))).unwrap();
                assert!(poller.is_ready(polled), "the thread does not sleep on a compiled set");
                notifier.drain();
            }
            assert_eq!(*program.take().unwrap().patterns()[0], *pattern);
        }
    }
}
