//! A thread that serves the clients of a kernel socket until it is dropped: one at a time, or those
//! that have something to say (`ClientQueue`).
//!
//! Used for the control socket, for the metrics, for programs that attach to a device process, and
//! by programs that listen on kernel sockets beside their stack. The caller creates the socket and
//! defines how a client is served; this module accepts, backs off if `accept` fails (for example
//! with EMFILE), and ends.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use base::{Duration, Instant};
use cli::Failure;
use io::clock::MonotonicClock;
use io::notify::{Notifier, Poller};

/// Delay after a failure of `accept`.
const RETRY: Duration = Duration::from_millis(100);

/// A listening kernel socket that does not block.
pub trait KernelListener: AsRawFd + Send + 'static {
    /// A connection to a client.
    type ClientStream;

    /// Makes [`Self::accept`] fail with [`std::io::ErrorKind::WouldBlock`] if there is no client.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    fn set_nonblocking(&self) -> std::io::Result<()>;

    /// Accepts a client.
    ///
    /// # Errors
    /// Fails if there is no client, or no file descriptor for one.
    fn accept(&self) -> std::io::Result<Self::ClientStream>;
}

impl KernelListener for TcpListener {
    type ClientStream = TcpStream;

    fn set_nonblocking(&self) -> std::io::Result<()> {
        self.set_nonblocking(true)
    }

    fn accept(&self) -> std::io::Result<TcpStream> {
        self.accept().map(|(client, _)| client)
    }
}

impl KernelListener for UnixListener {
    type ClientStream = UnixStream;

    fn set_nonblocking(&self) -> std::io::Result<()> {
        self.set_nonblocking(true)
    }

    fn accept(&self) -> std::io::Result<UnixStream> {
        self.accept().map(|(client, _)| client)
    }
}

/// Clients that are served when they have something to say, so that none delays the others.
pub(crate) trait ClientQueue<C>: Send + 'static {
    /// Adds a client.
    fn add(&mut self, client: C);

    /// Serves clients that are ready, and drops those whose time is over.
    fn advance(&mut self);

    /// Adds the descriptors that poll readable when a client may be ready.
    fn register(&self, poller: &mut Poller);

    /// Returns the time until [`Self::advance`] is to be called in any case.
    fn sleep_limit(&self) -> Option<Duration>;
}

/// A queue for clients that are served at once.
struct Serve<F>(F);

impl<C, F: FnMut(C) + Send + 'static> ClientQueue<C> for Serve<F> {
    fn add(&mut self, client: C) {
        self.0(client);
    }

    fn advance(&mut self) {}

    fn register(&self, _: &mut Poller) {}

    fn sleep_limit(&self) -> Option<Duration> {
        None
    }
}

/// The thread of a listener. Dropping it waits for a client that is being served and closes the
/// socket.
#[derive(Debug)]
pub struct ListenerThread {
    stop: Arc<AtomicBool>,
    stop_notifier: Notifier,
    thread: Option<JoinHandle<()>>,
}

impl ListenerThread {
    /// Starts a thread that calls `serve` with each client. `clients` is a plural noun for the
    /// clients in messages to the operator.
    ///
    /// # Errors
    /// Fails if no thread or file descriptor is left.
    pub fn start<L: KernelListener>(
        name: &str,
        clients: &'static str,
        listener: L,
        serve: impl FnMut(L::ClientStream) + Send + 'static,
    ) -> Result<Self, Failure> {
        Self::start_queue(name, clients, listener, Serve(serve))
    }

    /// As [`Self::start`], with a queue that clients are added to.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_queue<L: KernelListener>(
        name: &str,
        clients: &'static str,
        listener: L,
        mut queue: impl ClientQueue<L::ClientStream>,
    ) -> Result<Self, Failure> {
        let failed = |e| Failure::System(format!("cannot listen for {clients}: {e}"));
        listener.set_nonblocking().map_err(failed)?;
        let bell = Notifier::new().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut accept = AcceptLoop {
            clients,
            listener,
            stop: Arc::clone(&stop),
            stop_notifier: bell.clone(),
            failure_printed: false,
        };
        let run = move || accept.run(&mut queue);
        let thread = Some(crate::spawn(name.to_owned(), run)?);
        Ok(Self { stop, stop_notifier: bell, thread })
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.stop_notifier.notify();
        // The panic of the thread was printed already.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Reads from a client until a deadline, so that a slow client cannot occupy the thread.
#[derive(Debug)]
pub(crate) struct DeadlineReader<S> {
    stream: S,
    clock: MonotonicClock,
    deadline: Instant,
}

impl<S: Read + AsFd> DeadlineReader<S> {
    /// Sets the deadline to `limit` from now.
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        let clock = MonotonicClock::new();
        let deadline = clock.now() + limit;
        Self { stream, clock, deadline }
    }
}

impl<S: Read + AsFd> Read for DeadlineReader<S> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut poller = Poller::new();
        poller.add(self.stream.as_fd().as_raw_fd());
        let left = self.deadline.since(self.clock.now());
        match poller.wait(Some(left))? {
            0 if self.clock.now() >= self.deadline => Err(std::io::ErrorKind::TimedOut.into()),
            0 => Err(std::io::ErrorKind::Interrupted.into()),
            _ => self.stream.read(buf),
        }
    }
}

/// Accepts the clients of a listener.
struct AcceptLoop<L> {
    clients: &'static str,
    listener: L,
    stop: Arc<AtomicBool>,
    stop_notifier: Notifier,
    /// True if a failure of `accept` was printed, and none has succeeded since.
    failure_printed: bool,
}

impl<L: KernelListener> AcceptLoop<L> {
    /// Accepts clients until the thread must end.
    fn run(&mut self, queue: &mut impl ClientQueue<L::ClientStream>) {
        while !self.stop.load(Ordering::Acquire) {
            queue.advance();
            match self.listener.accept() {
                Ok(client) => {
                    self.failure_printed = false;
                    queue.add(client);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.sleep(Some(self.listener.as_raw_fd()), queue, queue.sleep_limit());
                }
                Err(error) => {
                    if !self.failure_printed {
                        eprintln!("outboard: cannot accept {}: {error}; retrying", self.clients);
                    }
                    self.failure_printed = true;
                    // The listener stays readable, so only a delay prevents a busy loop.
                    self.sleep(None, queue, Some(RETRY));
                }
            }
        }
    }

    fn sleep(
        &self,
        fd: Option<RawFd>,
        queue: &impl ClientQueue<L::ClientStream>,
        limit: Option<Duration>,
    ) {
        let mut poller = Poller::new();
        fd.map(|fd| poller.add(fd));
        queue.register(&mut poller);
        poller.add(self.stop_notifier.as_raw_fd());
        // An error means that the kernel is out of memory; the caller retries at once.
        let _ready = poller.wait(limit);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Write as _;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// Answers `accept` from a list. Its descriptor polls readable, like that of a listener with a
    /// client.
    struct ScriptedListener(Mutex<VecDeque<std::io::Result<u32>>>, Notifier);

    impl AsRawFd for ScriptedListener {
        fn as_raw_fd(&self) -> RawFd {
            self.1.as_raw_fd()
        }
    }

    impl KernelListener for ScriptedListener {
        type ClientStream = u32;

        fn set_nonblocking(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn accept(&self) -> std::io::Result<u32> {
            let next = self.0.lock().unwrap().pop_front();
            next.unwrap_or_else(|| Err(std::io::ErrorKind::WouldBlock.into()))
        }
    }

    #[test]
    fn the_client_after_a_failure_is_served() {
        let failure = || Err(std::io::Error::other("no descriptors"));
        let script = [failure(), failure(), Ok(7), Ok(8)].into();
        let listener = ScriptedListener(Mutex::new(script), Notifier::new().unwrap());
        let (sender, served) = channel();
        let serve = move |client| sender.send(client).unwrap();
        let thread = ListenerThread::start("test", "clients", listener, serve).unwrap();
        assert_eq!((served.recv(), served.recv()), (Ok(7), Ok(8)));
        drop(thread);
        assert!(served.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn the_socket_is_closed_when_the_thread_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let serve = |mut client: TcpStream| client.write_all(b"hello").unwrap();
        let thread = ListenerThread::start("test", "clients", listener, serve).unwrap();
        let mut said = String::new();
        TcpStream::connect(addr).unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "hello");
        drop(thread);
        assert!(TcpStream::connect(addr).is_err());
    }

    #[test]
    fn a_client_that_says_nothing_is_left_at_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"GET").unwrap();
        let mut reader = DeadlineReader::new(&ours, Duration::from_millis(20));
        let mut said = Vec::new();
        let error = reader.read_to_end(&mut said).unwrap_err();
        assert_eq!((said.as_slice(), error.kind()), (&b"GET"[..], std::io::ErrorKind::TimedOut));
    }
}
