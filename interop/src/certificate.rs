//! Certificates for servers, made by openssl.

use std::path::Path;

use crate::tool;

/// Creates a self-signed certificate for `NAME.example` in a folder; returns its path and that of
/// its key.
///
/// # Panics
/// If openssl fails.
#[must_use]
pub fn make_certificate(folder: &Path, name: &str) -> (String, String) {
    let path = |kind: &str| folder.join(format!("{name}.{kind}")).to_string_lossy().into_owned();
    let (cert, key) = (path("pem"), path("key"));
    let mut command = tool::command("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    command.args(["-nodes", "-days", "2", "-out", &cert, "-keyout", &key]);
    command.args(["-subj", &format!("/CN={name}.example")]);
    command.args(["-addext", &format!("subjectAltName=DNS:{name}.example")]);
    tool::run_for_output(&mut command);
    (cert, key)
}
