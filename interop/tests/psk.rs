//! TLS 1.3 with pre-shared keys, against OpenSSL's and GnuTLS's programs: the handshake of
//! `tls_psk` at either end, and a line in each direction under the resulting keys.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use abi::crypto::{Aead, CryptoProvider, Suite};
use interop::Files;
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::crypto::tls13::OkmBlock;
use tls_psk::{
    ExternalPsk, TlsPskFailure, TlsPskHandshake, TlsPskHash, TlsPskProgress, TlsPskSecrets,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// In NVMe's format: spaces, and Base64 at the end.
const IDENTITY: &str = "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:f81d4fae nqn.2026-11.io.outboard:\
                        storage OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=";
const LINE: &[u8] = b"a line of a hundred\n";
const REPLY: &[u8] = b"and one back\n";

fn secret(hash: TlsPskHash) -> Vec<u8> {
    let len = if hash == TlsPskHash::Sha256 { 32 } else { 48 };
    (1..=len).collect()
}

fn key(identity: &str, hash: TlsPskHash) -> ExternalPsk {
    ExternalPsk { identity: identity.into(), secret: secret(hash).into(), hash }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Another program at the other end of a connection.
struct ForeignProgram {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl ForeignProgram {
    fn start(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match pipes.spawn() {
            Ok(child) => child,
            Err(e) => panic!("cannot run {command:?}: {e}; `make setup` installs what tests need"),
        };
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout, name: format!("{command:?}") }
    }

    fn say(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line).and_then(|()| stdin.flush()).unwrap();
    }

    /// Waits for a line that contains `part`, and returns it.
    fn wait_for(&mut self, part: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                let errors = self.errors();
                panic!("{} ended without `{part}`: {seen}{errors}", self.name);
            }
            if line.contains(part) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    /// Waits for the program's end, and returns the rest of its output.
    fn errors(&mut self) -> String {
        self.stdin = None;
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut text).unwrap();
        }
        text
    }
}

impl Drop for ForeignProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our end of a connection.
struct PskPeer {
    stream: TcpStream,
    /// Bytes received and not used yet.
    rest: Vec<u8>,
}

impl PskPeer {
    fn new(stream: TcpStream) -> Self {
        // Only a limit for a test that fails.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, rest: Vec::new() }
    }

    fn accept(listener: &TcpListener) -> Self {
        Self::new(listener.accept().unwrap().0)
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the peer has closed"),
            Ok(n) => self.rest.extend(&bytes[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    }

    fn run_handshake(
        &mut self,
        mut handshake: TlsPskHandshake,
    ) -> Result<TlsPskSecrets, TlsPskFailure> {
        loop {
            let mut out = Vec::new();
            let progress = handshake.advance(&self.rest, &mut out);
            self.stream.write_all(&out).unwrap();
            match progress {
                TlsPskProgress::More { used: 0 } if out.is_empty() => self.read(),
                TlsPskProgress::More { used } => drop(self.rest.drain(..used)),
                TlsPskProgress::Done { used, secrets: agreed } => {
                    self.rest.drain(..used);
                    return Ok(*agreed);
                }
                TlsPskProgress::Failed { reason: why, .. } => return Err(why),
            }
        }
    }

    /// Reads one record; returns its inner content type and its text.
    fn read_record(&mut self, half: &mut TrafficKeys) -> (u8, Vec<u8>) {
        let whole = |rest: &[u8]| {
            let header: [u8; 5] = *rest.first_chunk()?;
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            Some((header, rest.get(5..5 + len)?.to_vec()))
        };
        let (header, mut text) = loop {
            match whole(&self.rest) {
                Some(found) => break found,
                None => self.read(),
            }
        };
        self.rest.drain(..5 + text.len());
        let nonce = half.nonce();
        let len = half.aead.open(&nonce, &header, &mut text).expect("it verifies");
        text.truncate(len);
        while text.last() == Some(&0) {
            text.pop();
        }
        (text.pop().unwrap(), text)
    }

    /// Sends a line of application data.
    fn write_record(&mut self, half: &mut TrafficKeys, line: &[u8]) {
        let mut text = [line, &[23]].concat();
        let len = u16::try_from(text.len() + 16).unwrap().to_be_bytes();
        let header = [23, 3, 3, len[0], len[1]];
        let nonce = half.nonce();
        let tag = half.aead.seal(&nonce, &header, &mut text);
        self.stream.write_all(&[&header[..], &text, &tag].concat()).unwrap();
    }
}

/// Keys of one direction (RFC 8446 section 7.3).
struct TrafficKeys {
    aead: Box<dyn Aead>,
    iv: [u8; 12],
    number: u64,
}

impl TrafficKeys {
    fn new(suite: Suite, secret: &[u8]) -> Self {
        let rustls = match suite {
            Suite::Aes128Gcm => cipher_suite::TLS13_AES_128_GCM_SHA256,
            Suite::Aes256Gcm => cipher_suite::TLS13_AES_256_GCM_SHA384,
            Suite::ChaCha20Poly1305 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let hkdf = rustls.tls13().unwrap().hkdf_provider;
        let expander = hkdf.expander_for_okm(&OkmBlock::new(secret));
        let expand = |label: &[u8], out: &mut [u8]| {
            let (len, label_len) = (u8::try_from(out.len()), u8::try_from(label.len()));
            let parts: [&[u8]; 4] = [&[0, len.unwrap()], &[label_len.unwrap()], label, &[0]];
            expander.expand_slice(&parts, out).unwrap();
        };
        let (mut key, mut iv) = (vec![0; suite.key_bytes()], [0; 12]);
        expand(b"tls13 key", &mut key);
        expand(b"tls13 iv", &mut iv);
        Self { aead: crypto::Provider.aead(suite, &key).unwrap(), iv, number: 0 }
    }

    fn nonce(&mut self) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.number.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        self.number += 1;
        nonce
    }
}

/// Reads [`LINE`] from the peer, after any session tickets, and sends [`REPLY`].
fn exchange(us: &mut PskPeer, agreed: &TlsPskSecrets, program: &mut ForeignProgram) {
    let mut tx = TrafficKeys::new(agreed.suite, &agreed.tx_secret);
    let mut rx = TrafficKeys::new(agreed.suite, &agreed.rx_secret);
    program.say(LINE);
    let text = loop {
        match us.read_record(&mut rx) {
            // NewSessionTicket.
            (22, message) => assert_eq!(message[0], 4),
            (kind, text) => {
                assert_eq!(kind, 23);
                break text;
            }
        }
    };
    assert_eq!(text, LINE);
    us.write_record(&mut tx, REPLY);
    program.wait_for(std::str::from_utf8(REPLY).unwrap().trim());
}

/// Writes an OpenSSL session (SSL_SESSION_ASN1 in PEM), by which its programs accept a key with
/// SHA-384. Returns its path.
fn psk_session(files: &Files) -> PathBuf {
    // Format version, version 3.4, TLS_AES_256_GCM_SHA384, an empty session ID, the secret.
    let mut body = vec![2, 1, 1, 2, 2, 3, 4, 4, 2, 0x13, 2, 4, 0, 4, 48];
    body.extend(secret(TlsPskHash::Sha384));
    let mut der = vec![0x30, u8::try_from(body.len()).unwrap()];
    der.extend(body);
    let text = base64(&der);
    files.write(
        "session.pem",
        format!(
            "-----BEGIN SSL SESSION PARAMETERS-----\n{text}\n-----END SSL SESSION PARAMETERS-----\n"
        ),
    );
    files.path().join("session.pem")
}

/// Encodes as Base64 (RFC 4648 section 4), in lines of 64 characters.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for (at, three) in bytes.chunks(3).enumerate() {
        if at > 0 && at % 16 == 0 {
            out.push('\n');
        }
        let bits = three.iter().fold(0, |bits, &byte| bits << 8 | usize::from(byte));
        let bits = bits << (8 * (3 - three.len()));
        for letter in 0..4 {
            let value = bits >> (18 - 6 * letter) & 63;
            out.push(if letter > three.len() { '=' } else { char::from(LETTERS[value]) });
        }
    }
    out
}

/// Runs `openssl s_client` towards us with more options.
fn s_client(listener: &TcpListener, more: &[&str]) -> ForeignProgram {
    let at = listener.local_addr().unwrap().to_string();
    ForeignProgram::start(Command::new("openssl").args(["s_client", "-connect", &at]).args(more))
}

/// Runs `openssl s_server` with more options, and connects to it.
fn s_server(more: &[&str]) -> (ForeignProgram, PskPeer) {
    let options = ["s_server", "-accept", "127.0.0.1:0", "-nocert", "-tls1_3"];
    let mut program = ForeignProgram::start(Command::new("openssl").args(options).args(more));
    let line = program.wait_for("ACCEPT");
    let port: u16 = line.trim().rsplit(':').next().unwrap().parse().unwrap();
    (program, PskPeer::new(TcpStream::connect(("127.0.0.1", port)).unwrap()))
}

fn server(identity: &str, hash: TlsPskHash) -> TlsPskHandshake {
    TlsPskHandshake::server(&[key("another", hash), key(identity, hash)]).unwrap()
}

fn client(identity: &str, hash: TlsPskHash) -> TlsPskHandshake {
    TlsPskHandshake::client(&[key(identity, hash)]).unwrap()
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn openssl_as_the_client() {
    let psk = hex(&secret(TlsPskHash::Sha256));
    let files = Files::new(TMP);
    let session = psk_session(&files);
    let cases: [(TlsPskHash, Suite, &[&str]); 4] = [
        (TlsPskHash::Sha256, Suite::Aes128Gcm, &["-psk", &psk]),
        (
            TlsPskHash::Sha256,
            Suite::ChaCha20Poly1305,
            &["-psk", &psk, "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        ),
        // Its key share is of a group that we do not support: HelloRetryRequest (RFC 8446 section
        // 4.1.4).
        (TlsPskHash::Sha256, Suite::Aes128Gcm, &["-psk", &psk, "-groups", "ffdhe2048:P-256"]),
        (TlsPskHash::Sha384, Suite::Aes256Gcm, &["-psk_session", session.to_str().unwrap()]),
    ];
    for (hash, suite, options) in cases {
        let listener = listener();
        let more = [&["-tls1_3", "-psk_identity", IDENTITY][..], options].concat();
        let mut program = s_client(&listener, &more);
        let mut us = PskPeer::accept(&listener);
        let agreed = us.run_handshake(server(IDENTITY, hash)).unwrap();
        assert_eq!((agreed.suite, &agreed.identity[..]), (suite, IDENTITY.as_bytes()));
        exchange(&mut us, &agreed, &mut program);
    }
}

#[test]
fn openssl_as_the_server() {
    let psk = hex(&secret(TlsPskHash::Sha256));
    let files = Files::new(TMP);
    let session = psk_session(&files);
    let cases: [(TlsPskHash, Suite, &[&str]); 4] = [
        (
            TlsPskHash::Sha256,
            Suite::Aes128Gcm,
            &["-psk", &psk, "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        ),
        (
            TlsPskHash::Sha256,
            Suite::ChaCha20Poly1305,
            &["-psk", &psk, "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        ),
        // The server requests another key share than our first one.
        (
            TlsPskHash::Sha256,
            Suite::Aes128Gcm,
            &["-psk", &psk, "-groups", "P-384", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        ),
        (TlsPskHash::Sha384, Suite::Aes256Gcm, &["-psk_session", session.to_str().unwrap()]),
    ];
    for (hash, suite, options) in cases {
        let more = [&["-psk_identity", IDENTITY][..], options].concat();
        let (mut program, mut us) = s_server(&more);
        let agreed = us.run_handshake(client(IDENTITY, hash));
        let agreed = agreed.unwrap_or_else(|why| panic!("{why}: {options:?}"));
        assert_eq!((agreed.suite, &agreed.identity[..]), (suite, IDENTITY.as_bytes()));
        exchange(&mut us, &agreed, &mut program);
    }
}

#[test]
fn openssl_clients_are_refused() {
    let psk = hex(&secret(TlsPskHash::Sha256));
    let wrong = hex(&secret(TlsPskHash::Sha384)[1..33]);
    let named = ["-tls1_3", "-psk_identity", IDENTITY, "-psk"];
    let cases: [(&[&str], TlsPskFailure, &str); 4] = [
        (&[&named[..], &[&wrong]].concat(), TlsPskFailure::SecretMismatch, "alert decrypt error"),
        (
            &["-tls1_3", "-psk_identity", "NVMe0R01 a b", "-psk", &psk],
            TlsPskFailure::NoKey,
            "alert handshake failure",
        ),
        (&["-tls1_3"], TlsPskFailure::NoKey, "alert handshake failure"),
        (&["-tls1_2"], TlsPskFailure::Version, "alert protocol version"),
    ];
    for (options, why, alert) in cases {
        let listener = listener();
        let mut program = s_client(&listener, options);
        let mut us = PskPeer::accept(&listener);
        assert_eq!(
            us.run_handshake(server(IDENTITY, TlsPskHash::Sha256)).unwrap_err(),
            why,
            "{options:?}"
        );
        drop(us);
        let errors = program.errors();
        assert!(errors.contains(alert), "{options:?}: {errors}");
    }
}

#[test]
fn openssl_servers_refuse_us() {
    let psk = hex(&secret(TlsPskHash::Sha256));
    let wrong = hex(&secret(TlsPskHash::Sha384)[1..33]);
    // RFC 8446 section 6.2: illegal_parameter and handshake_failure.
    for (identity, psk, alert) in [(IDENTITY, &wrong, 47), ("NVMe0R01 a b", &psk, 40)] {
        let (_program, mut us) = s_server(&["-psk_identity", identity, "-psk", psk]);
        let why = us.run_handshake(client(IDENTITY, TlsPskHash::Sha256)).unwrap_err();
        assert_eq!(why, TlsPskFailure::Alert(alert), "{identity}");
    }
}

/// Priority string. GnuTLS is the library of Linux's tlshd.
const GNUTLS: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK";

#[test]
fn gnutls_as_the_client() {
    let cases = [
        (secret(TlsPskHash::Sha256), Ok(())),
        (secret(TlsPskHash::Sha384)[1..33].to_vec(), Err(TlsPskFailure::SecretMismatch)),
    ];
    for (psk, result) in cases {
        let listener = listener();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut program = ForeignProgram::start(
            Command::new("gnutls-cli")
                .args(["--port", &port, "--priority", GNUTLS, "--pskusername", IDENTITY])
                .args(["--pskkey", &hex(&psk), "127.0.0.1"]),
        );
        let mut us = PskPeer::accept(&listener);
        let agreed = us.run_handshake(server(IDENTITY, TlsPskHash::Sha256));
        assert_eq!(agreed.as_ref().map(|_| ()).map_err(|&why| why), result);
        match agreed {
            Ok(agreed) => {
                assert_eq!(agreed.suite, Suite::Aes128Gcm);
                exchange(&mut us, &agreed, &mut program);
            }
            Err(_) => {
                drop(us);
                let errors = program.errors();
                assert!(errors.contains("Decrypt error"), "{errors}");
            }
        }
    }
}

#[test]
fn gnutls_as_the_server() {
    let files = Files::new(TMP);
    // A name that contains a colon is written in hexadecimal digits.
    let (identity, psk) = (hex(IDENTITY.as_bytes()), hex(&secret(TlsPskHash::Sha256)));
    files.write("keys", format!("#{identity}:{psk}\n"));
    // gnutls-serv does not accept port zero.
    let port = listener().local_addr().unwrap().port();
    let mut program = ForeignProgram::start(
        Command::new("sh")
            .args(["-c", "exec gnutls-serv \"$@\" 2>&1", "sh", "--echo", "--port"])
            .args([&port.to_string(), "--priority", GNUTLS, "--pskpasswd"])
            .arg(files.path().join("keys")),
    );
    program.wait_for("IPv4");
    let connect = || PskPeer::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut us = connect();
    let agreed = us.run_handshake(client(IDENTITY, TlsPskHash::Sha256)).unwrap();
    assert_eq!(agreed.suite, Suite::Aes128Gcm);
    let mut tx = TrafficKeys::new(agreed.suite, &agreed.tx_secret);
    let mut rx = TrafficKeys::new(agreed.suite, &agreed.rx_secret);
    us.write_record(&mut tx, LINE);
    let text = loop {
        match us.read_record(&mut rx) {
            (22, message) => assert_eq!(message[0], 4),
            (kind, text) => break (kind, text),
        }
    };
    assert_eq!(text, (23, LINE.to_vec()));
    let why = connect().run_handshake(client("NVMe0R01 a b", TlsPskHash::Sha256)).unwrap_err();
    assert!(matches!(why, TlsPskFailure::Alert(_)), "{why:?}");
}
