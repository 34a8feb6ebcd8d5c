//! Test vectors of libnvme and Linux, and invalid keys.

use proptest::prelude::*;

use super::*;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";
/// The 48-byte key of libnvme's test/psk.c; its first 32 bytes are the shorter key.
const KEY: [u8; 48] = [
    0x55, 0x12, 0xdb, 0xb6, 0x73, 0x7d, 0x01, 0x06, 0xf6, 0x59, 0x75, 0xb7, 0x73, 0xdf, 0xb0, 0x11,
    0xff, 0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03,
    0xff, 0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03,
];

fn key(hash: Option<PskHash>, len: usize) -> ConfiguredPsk {
    ConfiguredPsk::new(hash, Zeroizing::new(KEY[..len].to_vec())).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn interchange_format_of_libnvme() {
    let cases = [
        (None, 32, "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
        (
            Some(PskHash::Sha256),
            32,
            "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        ),
        (
            Some(PskHash::Sha384),
            48,
            "NVMeTLSkey-1:02:\
             VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
        ),
    ];
    for (hash, len, text) in cases {
        let configured = key(hash, len);
        assert_eq!(*configured.to_interchange(), text);
        // No reallocation, which would have left part of the key in freed memory.
        assert_eq!(configured.to_interchange().capacity(), text.len());
        assert_eq!(text.parse(), Ok(configured));
    }
}

#[test]
fn says_what_is_wrong_with_a_key() {
    let body = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
    let cases = [
        (format!("NVMeTLSkey-2:01:{body}:"), KeyFault::Prefix),
        (String::new(), KeyFault::Prefix),
        (format!("NVMeTLSkey-1:01:{body}"), KeyFault::End),
        ("NVMeTLSkey-1:01:".to_owned(), KeyFault::Hash),
        (format!("NVMeTLSkey-1:03:{body}:"), KeyFault::Hash),
        (format!("NVMeTLSkey-1:1:{body}:"), KeyFault::Hash),
        (format!("NVMeTLSkey-1:01:{body}::"), KeyFault::Base64),
        (format!("NVMeTLSkey-1:01:{body}=:"), KeyFault::Base64),
        (format!("NVMeTLSkey-1:01:{}:", body.replace('V', "-")), KeyFault::Base64),
        ("NVMeTLSkey-1:01::".to_owned(), KeyFault::Length),
        (format!("NVMeTLSkey-1:01:{}:", &body[4..]), KeyFault::Length),
        (format!("NVMeTLSkey-1:02:{body}:"), KeyFault::HashLength),
        (format!("NVMeTLSkey-1:01:{}:", body.replacen('V', "W", 1)), KeyFault::Checksum),
    ];
    for (text, fault) in cases {
        assert_eq!(text.parse::<ConfiguredPsk>(), Err(fault), "{text}");
        assert!(!fault.to_string().contains('\n'));
    }
    let short = ConfiguredPsk::new(None, Zeroizing::new(vec![1; 31]));
    assert_eq!(short, Err(KeyFault::Length));
}

/// Test vectors of libnvme's test/psk.c: `test_data_identity` (RFC 8446's derivation) and
/// `test_data_identity_compat` (that of older versions).
#[test]
fn identities_of_libnvme() {
    let cases = [
        (PskHash::Sha256, Derivation::Rfc8446, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="),
        (
            PskHash::Sha384,
            Derivation::Rfc8446,
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
        ),
        (PskHash::Sha256, Derivation::Libnvme, "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="),
        (
            PskHash::Sha384,
            Derivation::Libnvme,
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
        ),
    ];
    for (hash, derivation, digest) in cases {
        let retained = key(Some(hash), hash.bytes()).retained(HOST, derivation).unwrap();
        assert_eq!(retained.digest(HOST, SUBSYSTEM), digest);
        let tls = |version| retained.tls(version, HOST, SUBSYSTEM, derivation).unwrap();
        let id = hash.id();
        let one = tls(IdentityVersion::One);
        assert_eq!(one.identity, format!("NVMe1R{id} {HOST} {SUBSYSTEM} {digest}"));
        let zero = tls(IdentityVersion::Zero);
        assert_eq!(zero.identity, format!("NVMe0R{id} {HOST} {SUBSYSTEM}"));
        assert_eq!((one.hash, zero.hash), (hash, hash));
        assert_ne!(one.secret, zero.secret);
    }
}

/// Test vectors of Linux's drivers/nvme/common/tests/auth_kunit.c: digest and TLS secret of a
/// generated key, which is derived as from a retained key. The names are `hostnqn` and `subsysnqn`.
#[test]
fn secrets_of_linux() {
    let cases = [
        (
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8\
             640b9e3a748cb11ce4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d08\
             98fff15bb8b77119d2be0aac423e7590",
        ),
    ];
    for (psk, digest, secret) in cases {
        let configured = ConfiguredPsk::new(None, Zeroizing::new(hex(psk))).unwrap();
        let retained = configured.retained("hostnqn", Derivation::Rfc8446).unwrap();
        assert_eq!(retained.digest("hostnqn", "subsysnqn"), digest);
        let one = IdentityVersion::One;
        let tls = retained.tls(one, "hostnqn", "subsysnqn", Derivation::Rfc8446).unwrap();
        assert_eq!(*tls.secret, hex(secret));
    }
}

#[test]
fn names_have_room_in_a_label() {
    let configured = key(None, 32);
    let retained = configured.retained(HOST, Derivation::Rfc8446).unwrap();
    let tls = |version, len: usize| {
        let derivation = Derivation::Rfc8446;
        retained.tls(version, HOST, &"s".repeat(len), derivation).is_some()
    };
    // "NVMe0R01 ", the host NQN and a space leave 228 bytes.
    assert!(tls(IdentityVersion::Zero, 228));
    assert!(!tls(IdentityVersion::Zero, 229));
    assert!(tls(IdentityVersion::One, 1000));
    let long = "h".repeat(256);
    assert!(key(Some(PskHash::Sha256), 32).retained(&long, Derivation::Rfc8446).is_none());
}

#[test]
fn debug_shows_no_key() {
    let configured = key(Some(PskHash::Sha256), 32);
    let retained = configured.retained(HOST, Derivation::Rfc8446).unwrap();
    let tls = retained.tls(IdentityVersion::Zero, HOST, SUBSYSTEM, Derivation::Rfc8446).unwrap();
    assert_eq!(format!("{configured:?}"), "ConfiguredPsk { hash: Some(Sha256), .. }");
    assert_eq!(format!("{retained:?}"), "RetainedPsk { hash: Sha256, .. }");
    let identity = format!("NVMe0R01 {HOST} {SUBSYSTEM}");
    assert_eq!(format!("{tls:?}"), format!("TlsPsk {{ identity: {identity:?}, .. }}"));
}

proptest! {
    /// A printed key parses to the same key.
    #[test]
    fn printed_keys_are_read(
        long in any::<bool>(),
        transform in any::<bool>(),
        seed in any::<[u8; 48]>(),
    ) {
        let hash = if long { PskHash::Sha384 } else { PskHash::Sha256 };
        let psk = Zeroizing::new(seed[..hash.bytes()].to_vec());
        let configured = ConfiguredPsk::new(transform.then_some(hash), psk).unwrap();
        prop_assert_eq!(configured.to_interchange().parse(), Ok(configured));
    }

    #[test]
    fn any_text_is_looked_at(rest in "(0[0-3]:)?[A-Za-z0-9+/=:]{0,80}:?") {
        let _ = format!("NVMeTLSkey-1:{rest}").parse::<ConfiguredPsk>();
    }
}
