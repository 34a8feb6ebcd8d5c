//! Messages to the service manager that has started the process, by the protocol of sd_notify(3):
//! that it is ready, that it is ending, and that its threads work.
//!
//! Without a manager they have no effect. The manager restarts a process whose messages stop
//! (`WatchdogSec=` of systemd).

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cli::Failure;
use sd_notify::NotifyState;

use crate::control::Probe;

/// Tells the manager that the process serves.
pub(crate) fn notify_ready() {
    send(NotifyState::Ready);
}

/// Tells the manager that the process is about to end.
pub(crate) fn notify_stopping() {
    send(NotifyState::Stopping);
}

fn send(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        eprintln!("outboard: cannot notify the service manager: {error}");
    }
}

/// The thread that tells the manager that the threads of the stack work. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct WatchdogThread {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WatchdogThread {
    /// Starts the thread, if the manager expects messages. It sends one if all of `probes` have
    /// answered, twice in the interval of the manager.
    ///
    /// # Errors
    /// Fails if no thread is left.
    pub(crate) fn start(probes: &[Probe]) -> Result<Option<Self>, Failure> {
        let interval = sd_notify::watchdog_enabled();
        interval.map(|interval| Self::start_with(interval / 2, probes.to_vec(), send)).transpose()
    }

    fn start_with(
        interval: Duration,
        probes: Vec<Probe>,
        send: impl Fn(NotifyState<'static>) + Send + 'static,
    ) -> Result<Self, Failure> {
        let (end, ended) = channel::<()>();
        let run = move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if probes.iter().all(Probe::answers) {
                    send(NotifyState::Watchdog);
                }
            }
        };
        let thread = Some(crate::spawn("watchdog".to_owned(), run)?);
        Ok(Self { end: Some(end), thread })
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        drop(self.end.take());
        // The panic of the thread was printed already.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use io::notify::Notifier;

    use super::*;
    use crate::control::probe_channel;

    const INTERVAL: Duration = Duration::from_millis(1);

    /// A thread that does not answer stops the messages, whatever the others do.
    #[test]
    fn messages_stop_with_a_thread() {
        let (works, receiver) = probe_channel("host", 0, Notifier::new().unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let answering = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                receiver.answer(|_| ());
                std::thread::yield_now();
            }
        });
        let (sender, sent) = channel();
        let send = move |_| sender.send(()).unwrap();
        let watchdog = WatchdogThread::start_with(INTERVAL, vec![works.clone()], send).unwrap();
        assert!((0..3).all(|_| sent.recv().is_ok()));
        drop(watchdog);
        let (stuck, receiver) = probe_channel("nic", 0, Notifier::new().unwrap());
        drop(receiver);
        let (sender, sent) = channel();
        let send = move |_| sender.send(()).unwrap();
        let watchdog = WatchdogThread::start_with(INTERVAL, vec![works, stuck], send).unwrap();
        assert!(sent.recv_timeout(INTERVAL * 50).is_err());
        drop(watchdog);
        assert!(sent.recv().is_err());
        end.store(true, Ordering::Relaxed);
        answering.join().unwrap();
    }
}
