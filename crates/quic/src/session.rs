//! TLS for quinn-proto: handshakes by rustls, 1-RTT keys by [`crate::keys`].
//!
//! rustls returns packet keys as opaque objects, but the device needs the key bytes. The traffic
//! secrets from which they are derived are passed to a key log, so each connection has its own
//! ([`SecretLog`]), which forwards everything to the configured log (`SSLKEYLOGFILE`).

use std::any::Any;
use std::fmt;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use abi::crypto::{CryptoProvider, Suite};
use quinn_proto::crypto::{
    ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
    Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::pki_types::ServerName;
use rustls::quic::{Connection, KeyChange, Secrets, Version};
use rustls::{CipherSuite, KeyLog, SupportedCipherSuite, quic};
use zeroize::Zeroizing;

use crate::credit::Credit;
use crate::keys::KeySchedule;
use crate::protection::{
    KeyGeneration, OneRttHeaderKey, OneRttKey, OneRttShared, TlsHeaderKey, TlsKey,
};

/// The only supported version (RFC 9000).
pub(crate) const VERSION_1: u32 = 1;
/// Key and nonce of the Retry integrity tag (RFC 9001 section 5.8).
const RETRY_KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const RETRY_NONCE: [u8; 12] =
    [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

/// The handshake data that a session returns through `quinn_proto::Connection::crypto_session`.
pub(crate) struct HandshakeData {
    /// State shared by the driver and the connection's crypto objects.
    pub(crate) shared: Arc<OneRttShared>,
    /// Protocol negotiated by ALPN.
    pub(crate) protocol: Option<Vec<u8>>,
}

/// TLS of accepted connections.
pub(crate) struct QuicTlsServer {
    pub(crate) config: Arc<rustls::ServerConfig>,
    pub(crate) crypto: Arc<dyn CryptoProvider>,
    pub(crate) initial: quic::Suite,
}

/// TLS of a client connection.
pub(crate) struct QuicTlsClient {
    pub(crate) config: Arc<rustls::ClientConfig>,
    pub(crate) crypto: Arc<dyn CryptoProvider>,
    pub(crate) initial: quic::Suite,
}

/// Returns the suite of Initial packets (RFC 9001 section 5.2) if the provider has it.
pub(crate) fn initial_suite(provider: &rustls::crypto::CryptoProvider) -> Option<quic::Suite> {
    let suites = provider.cipher_suites.iter();
    let mut fitting = suites.filter(|s| s.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    fitting.find_map(|suite| suite.tls13()?.quic_suite())
}

impl ServerConfig for QuicTlsServer {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        if version != VERSION_1 {
            return Err(UnsupportedVersion);
        }
        Ok(boxed(self.initial.keys(dst_cid, rustls::Side::Server, Version::V1)))
    }

    fn retry_tag(&self, _: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        // Without the suite the tag is zero, and the peer drops the packet.
        retry_tag(&*self.crypto, orig_dst_cid, &[packet]).unwrap_or_default()
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn Session> {
        let log = Arc::new(SecretLog::new(Arc::clone(&self.config.key_log)));
        let mut config = (*self.config).clone();
        config.key_log = Arc::clone(&log) as Arc<dyn KeyLog>;
        let tls = quic::ServerConnection::new(Arc::new(config), Version::V1, encode(params));
        let inner = tls.ok().map(Connection::Server);
        Box::new(QuicTlsSession::new(
            inner,
            log,
            self.initial,
            Arc::clone(&self.crypto),
            Side::Server,
        ))
    }
}

impl ClientConfig for QuicTlsClient {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        if version != VERSION_1 {
            return Err(ConnectError::UnsupportedVersion);
        }
        let name = ServerName::try_from(server_name)
            .map_err(|_| ConnectError::InvalidServerName(server_name.to_owned()))?
            .to_owned();
        let log = Arc::new(SecretLog::new(Arc::clone(&self.config.key_log)));
        let mut config = (*self.config).clone();
        config.key_log = Arc::clone(&log) as Arc<dyn KeyLog>;
        let tls = quic::ClientConnection::new(Arc::new(config), Version::V1, name, encode(params));
        let inner = tls.ok().map(Connection::Client);
        let crypto = Arc::clone(&self.crypto);
        Ok(Box::new(QuicTlsSession::new(inner, log, self.initial, crypto, Side::Client)))
    }
}

/// rustls's secrets, used if our own keys cannot be derived.
type FallbackSecrets = Option<Secrets>;

/// TLS session of one connection.
struct QuicTlsSession {
    /// `None` if rustls rejected the configuration; the handshake then fails.
    inner: Option<Connection>,
    log: Arc<SecretLog>,
    initial: quic::Suite,
    crypto: Arc<dyn CryptoProvider>,
    side: Side,
    shared: Arc<OneRttShared>,
    /// Our schedule and the peer's, once the handshake has produced the secrets.
    schedules: Option<(KeySchedule, KeySchedule)>,
    generations: u64,
    fallback: FallbackSecrets,
    handshake_data_reported: bool,
}

impl QuicTlsSession {
    fn new(
        inner: Option<Connection>,
        log: Arc<SecretLog>,
        initial: quic::Suite,
        crypto: Arc<dyn CryptoProvider>,
        side: Side,
    ) -> Self {
        Self {
            inner,
            log,
            initial,
            crypto,
            side,
            shared: Arc::default(),
            schedules: None,
            generations: 0,
            fallback: None,
            handshake_data_reported: false,
        }
    }

    /// Derives our 1-RTT keys from the logged secrets. `None` if the cipher suite is unknown.
    fn one_rtt(&mut self) -> Option<Keys> {
        let suite = self.inner.as_ref()?.negotiated_cipher_suite()?;
        let SupportedCipherSuite::Tls13(cipher) = suite else { return None };
        let (client, server) = self.log.take()?;
        let (ours, theirs) = match self.side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        let schedules = (KeySchedule::new(cipher, &ours)?, KeySchedule::new(cipher, &theirs)?);
        let tx = Arc::new(schedules.0.header(&*self.crypto)?);
        let rx = Arc::new(schedules.1.header(&*self.crypto)?);
        let mut state = self.shared.lock();
        state.suite = Some(schedules.0.suite());
        state.tx_header = Some(Arc::clone(&tx));
        state.rx_header = Some(Arc::clone(&rx));
        drop(state);
        self.schedules = Some(schedules);
        let packet = self.next_generation()?;
        let header = |keys| -> Box<dyn HeaderKey> {
            Box::new(OneRttHeaderKey { keys, shared: Arc::clone(&self.shared) })
        };
        Some(Keys { header: KeyPair { local: header(tx), remote: header(rx) }, packet })
    }

    fn next_generation(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let (ours, theirs) = self.schedules.as_mut()?;
        let suite = ours.suite();
        let (tx, rx) = (ours.next(&*self.crypto)?, theirs.next(&*self.crypto)?);
        let number = self.generations;
        self.generations += 1;
        let generation = KeyGeneration { number, tx: Arc::clone(&tx), rx: Arc::clone(&rx) };
        self.shared.lock().push_generation(generation);
        let key = |keys| -> Box<dyn PacketKey> {
            let shared = Arc::clone(&self.shared);
            Box::new(OneRttKey { keys, generation: number, suite, shared })
        };
        Some(KeyPair { local: key(tx), remote: key(rx) })
    }
}

impl Session for QuicTlsSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        let side = match side {
            Side::Client => rustls::Side::Client,
            Side::Server => rustls::Side::Server,
        };
        boxed(self.initial.keys(dst_cid, side, Version::V1))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let protocol = self.inner.as_ref().and_then(|tls| tls.alpn_protocol());
        let protocol = protocol.map(<[u8]>::to_vec);
        Some(Box::new(HandshakeData { shared: Arc::clone(&self.shared), protocol }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.inner.as_ref()?.zero_rtt_keys()?;
        Some((Box::new(TlsHeaderKey(keys.header)), Box::new(TlsKey(keys.packet))))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        match self.inner.as_ref()? {
            Connection::Client(tls) => Some(tls.is_early_data_accepted()),
            Connection::Server(_) => None,
        }
    }

    fn is_handshaking(&self) -> bool {
        self.inner.as_ref().is_none_or(|tls| tls.is_handshaking())
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let Some(tls) = self.inner.as_mut() else {
            return Err(failed(TransportErrorCode::INTERNAL_ERROR, "TLS is not configured"));
        };
        if let Err(error) = tls.read_hs(buf) {
            // RFC 9001 section 4.8: TLS alerts become QUIC error codes.
            let alert = tls.alert().map(|alert| TransportErrorCode::crypto(alert.into()));
            let code = alert.unwrap_or(TransportErrorCode::PROTOCOL_VIOLATION);
            return Err(failed(code, error.to_string()));
        }
        let known = tls.alpn_protocol().is_some() || !tls.is_handshaking();
        Ok(known && !core::mem::replace(&mut self.handshake_data_reported, known))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let params = self.inner.as_ref().and_then(|tls| tls.quic_transport_parameters());
        let Some(params) = params else { return Ok(None) };
        let mut state = self.shared.lock();
        if state.credit == Credit::default() {
            state.credit = Credit::from_transport_parameters(params);
        }
        drop(state);
        Ok(Some(TransportParameters::read(self.side, &mut Cursor::new(params))?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        match self.inner.as_mut()?.write_hs(buf)? {
            KeyChange::Handshake { keys } => Some(boxed(keys)),
            KeyChange::OneRtt { keys, next } => Some(self.one_rtt().unwrap_or_else(|| {
                self.fallback = Some(next);
                boxed(keys)
            })),
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        if let Some(secrets) = &mut self.fallback {
            let keys = secrets.next_packet_keys();
            let (local, remote) = (TlsKey(keys.local), TlsKey(keys.remote));
            return Some(KeyPair { local: Box::new(local), remote: Box::new(remote) });
        }
        self.next_generation()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some((rest, tag)) = payload.split_last_chunk::<16>() else { return false };
        retry_tag(&*self.crypto, orig_dst_cid, &[header, rest]).as_ref() == Some(tag)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let tls = self.inner.as_ref().ok_or(ExportKeyingMaterialError)?;
        tls.export_keying_material(output, label, Some(context))
            .map(|_| ())
            .map_err(|_| ExportKeyingMaterialError)
    }
}

/// Traffic secrets of client and server.
type TrafficSecrets = (Zeroizing<Vec<u8>>, Zeroizing<Vec<u8>>);

/// A secret, once it was logged.
type LoggedSecret = Option<Zeroizing<Vec<u8>>>;

/// Keeps the 1-RTT secrets of one connection and forwards all to the configured log.
struct SecretLog {
    forward: Arc<dyn KeyLog>,
    secrets: Mutex<(LoggedSecret, LoggedSecret)>,
}

impl SecretLog {
    fn new(forward: Arc<dyn KeyLog>) -> Self {
        Self { forward, secrets: Mutex::default() }
    }

    fn take(&self) -> Option<TrafficSecrets> {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.0.take().zip(secrets.1.take())
    }
}

impl fmt::Debug for SecretLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets are not printed.
        f.write_str("SecretLog")
    }
}

impl KeyLog for SecretLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => secrets.0 = Some(Zeroizing::new(secret.to_vec())),
            "SERVER_TRAFFIC_SECRET_0" => secrets.1 = Some(Zeroizing::new(secret.to_vec())),
            _ => {}
        }
        drop(secrets);
        if self.forward.will_log(label) {
            self.forward.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label.ends_with("_TRAFFIC_SECRET_0") || self.forward.will_log(label)
    }
}

fn failed(code: TransportErrorCode, reason: impl Into<String>) -> TransportError {
    TransportError { code, frame: None, reason: reason.into() }
}

fn boxed(keys: quic::Keys) -> Keys {
    let quic::Keys { local, remote } = keys;
    Keys {
        header: KeyPair {
            local: Box::new(TlsHeaderKey(local.header)),
            remote: Box::new(TlsHeaderKey(remote.header)),
        },
        packet: KeyPair {
            local: Box::new(TlsKey(local.packet)),
            remote: Box::new(TlsKey(remote.packet)),
        },
    }
}

fn encode(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    params.write(&mut bytes);
    bytes
}

/// Returns the Retry integrity tag (RFC 9001 section 5.8): the AEAD tag of an empty plaintext with
/// the Retry pseudo-packet as associated data. `None` if AES-128-GCM is missing.
fn retry_tag(
    crypto: &dyn CryptoProvider,
    orig_dst_cid: &ConnectionId,
    packet: &[&[u8]],
) -> Option<[u8; 16]> {
    let len = [u8::try_from(orig_dst_cid.len()).ok()?];
    let pseudo = [&[&len[..], &orig_dst_cid[..]].concat()[..], &packet.concat()].concat();
    let aead = crypto.aead(Suite::Aes128Gcm, &RETRY_KEY)?;
    Some(aead.seal(&RETRY_NONCE, &pseudo, &mut []))
}
