//! Request heads that servers interpret differently, through `outboard proxy` to nginx, Apache,
//! Node.js and Python servers: none of them sees another request than the proxy did.
//!
//! The recorder's bytes show what the proxy forwards; unit tests of the proxy show, for the same
//! list of heads, that each forwarded head has only one meaning.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use interop::{Files, Netns, PEER, TestServer, ThirdPartyServer, run_for_output};
use serde_json::Value;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const PYTHON: &str = "/usr/bin/python3";
/// Ports of the proxy; the port of each backend is 8000 higher.
const PORTS: [(u16, &str); 5] =
    [(80, "recorder"), (81, "nginx"), (82, "node"), (83, "python"), (84, "apache")];

fn client(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name);
    path.to_string_lossy().into_owned()
}

/// Returns the requests that a server reports: method, target, Host, Content-Length and transfer
/// coding.
fn seen(result: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let request = |request: &Value| request.as_array().into_iter().flatten().map(text).collect();
    result["seen"].as_array().into_iter().flatten().map(request).collect()
}

/// Returns the head that the recorder received, and the bytes after it.
fn recorded(result: &Value) -> (String, String) {
    let got = result["got"].as_str().unwrap_or_default();
    let hex = got.split_once("RAW<").and_then(|(_, rest)| rest.split_once('>'));
    let hex = hex.unwrap_or_else(|| panic!("{result}")).0.as_bytes();
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).unwrap_or_default();
        char::from(u8::from_str_radix(digits, 16).unwrap_or_default())
    };
    let text: String = hex.chunks(2).map(byte).collect();
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    (head.to_owned(), rest.to_owned())
}

/// A server's reaction to the next request on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRequest {
    Reads,
    /// The server may read it: HTTP/1.0 leaves that open.
    MayRead,
    Closes,
}

/// Returns what a server sees that reads this head like the proxy, and its reaction to the next
/// request.
fn meaning(head: &str) -> (Vec<String>, NextRequest) {
    let line: Vec<_> = head.lines().next().unwrap_or_default().split(' ').collect();
    let field = |name: &str| {
        let lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
        let values: Vec<_> = lines.filter(|(n, _)| *n == name).map(|(_, value)| value).collect();
        assert!(values.len() <= 1, "{head:?}");
        values.concat()
    };
    let [host, length, coding] = ["Host", "Content-Length", "Transfer-Encoding"].map(field);
    let next = match (field("Connection").as_str(), line[2]) {
        ("keep-alive", _) => NextRequest::MayRead,
        ("close", _) | (_, "HTTP/1.0") => NextRequest::Closes,
        _ => NextRequest::Reads,
    };
    (vec![line[0].to_owned(), line[1].to_owned(), host, length, coding], next)
}

fn apache(netns: &Netns, scratch: &Files, port: u16) -> ThirdPartyServer {
    let at = scratch.path().display().to_string();
    let modules = "/usr/lib/apache2/modules";
    let config = format!(
        "ServerRoot {at}\nPidFile {at}/apache.pid\nErrorLog {at}/apache.log\nListen 0.0.0.0:{port}
ServerName localhost\nDefaultRuntimeDir {at}\nUser nobody\nGroup nogroup\nDocumentRoot {at}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule headers_module {modules}/mod_headers.so
ServerLimit 1\nThreadsPerChild 25\nMaxRequestWorkers 25\nTraceEnable off
Header always set X-Seen \"expr=SEEN<%{{THE_REQUEST}}|%{{HTTP:Host}}|%{{HTTP:Content-Length}}|\
         %{{HTTP:Transfer-Encoding}}>\"\n"
    );
    let path = scratch.write("apache.conf", config);
    // A single process, so that killing it ends Apache.
    ThirdPartyServer::start(netns, "apache2", &["-X", "-f", &path.to_string_lossy()], port)
}

/// Splits the request line, which Apache reports as one part, into method and target.
fn as_others(mut request: Vec<String>) -> Vec<String> {
    if request.len() == 4 {
        let line: Vec<_> = request.remove(0).splitn(3, ' ').map(str::to_owned).collect();
        let start = [line.first(), line.get(1)].map(|part| part.cloned().unwrap_or_default());
        request.splice(0..0, start);
    }
    request
}

#[test]
fn all_servers_see_the_same_request() {
    let scratch = Files::new(TMP);
    let netns = Netns::new();
    // Apache changes to another user, which a user namespace with a single user does not permit.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let ports = &PORTS[..if is_root { 5 } else { 4 }];
    let reflect = "add_header X-Seen \"SEEN<$request_method|$request_uri|$http_host|\
                   $http_content_length|$http_transfer_encoding>\" always;";
    let site = Files::new(TMP);
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), site.path(), &[8081], reflect);
    let _node = ThirdPartyServer::start(&netns, "node", &[&client("reflect.js"), "8082"], 8082);
    let _python =
        ThirdPartyServer::start(&netns, PYTHON, &[&client("heads.py"), "server", "8083"], 8083);
    let _apache = is_root.then(|| apache(&netns, &scratch, 8084));
    let mut config = String::new();
    for (port, name) in ports {
        config += &format!(
            "[[listener]]\nlisten = ':{port}'\nmode = 'http'\ndefault = '{name}'\n[[backend]]\n\
             name = '{name}'\nservers = ['{PEER}:{}']\ncheck-interval-ms = 0\n",
            port + 8000
        );
    }
    let path = scratch.write("proxy.toml", config);
    let server = TestServer::proxy(netns, &["--config", &path.to_string_lossy()]);
    let heads: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../crates/apps/src/proxy/head/heads.txt"].iter().collect();
    let names = ports.iter().map(|(port, name)| format!("{port}={name}"));
    let mut command = server.command(PYTHON);
    command.arg(client("heads.py")).arg("send").arg(&heads).arg(interop::ADDR).args(names);
    let results: Vec<Value> = run_for_output(&mut command)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    compare(&results, ports.len());
}

/// Compares the requests that the servers saw with those of the recorder.
fn compare(results: &[Value], servers: usize) {
    let (mut wrong, mut agreed, mut refused) = (Vec::new(), BTreeMap::new(), 0);
    let mut expected = (Vec::new(), NextRequest::Closes);
    for result in results {
        let line = result["line"].as_str().unwrap_or_default();
        let statuses: Vec<_> = result["statuses"].as_array().into_iter().flatten().collect();
        let Some(forwarded) = line.strip_prefix("fwd ") else {
            refused += 1;
            let status = line.split('\t').next().unwrap_or_default();
            let is_ours =
                result["got"].as_str().is_some_and(|got| got.contains("Server: outboard"));
            if statuses.len() != 1 || statuses[0].as_u64() != status.parse().ok() || !is_ours {
                wrong.push(format!("{result}"));
            }
            continue;
        };
        if result["server"] == "recorder" {
            let (head, rest) = recorded(result);
            expected = meaning(&head);
            let method = forwarded.split(' ').next().unwrap_or_default();
            assert_eq!(expected.0[0], method, "{line}");
            assert!(rest.ends_with("Connection: close\r\n\r\n"), "{line}: {rest:?}");
            continue;
        }
        let requests: Vec<_> = seen(result).into_iter().map(as_others).collect();
        // 100 (Continue) is not a final status.
        let answer = statuses.iter().find(|status| status.as_u64() != Some(100));
        let is_refusal = matches!(answer.and_then(|s| s.as_u64()), Some(400 | 405 | 411 | 501));
        let second = ["GET", "/second", "second.example", "", ""].map(str::to_owned).to_vec();
        let both = [expected.0.clone(), second];
        let same = match expected.1 {
            NextRequest::Closes => requests == both[..1],
            NextRequest::MayRead => requests == both || requests == both[..1],
            // Apache answers requests for the server as a whole (`*`) itself, without our field.
            NextRequest::Reads => requests == both || both[0][1] == "*" && requests == both[1..],
        };
        if same {
            *agreed.entry(result["server"].to_string()).or_insert(0) += 1;
        } else if !is_refusal || requests.len() > 1 {
            wrong.push(format!("{expected:?}: {result}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    println!("{refused} heads refused; forwarded and seen alike: {agreed:?}");
    assert!(refused > 200 && agreed.len() == servers - 1, "{refused} {agreed:?}");
    // A server that refuses a head has not seen another request; most heads are accepted by every
    // server.
    assert!(agreed.values().all(|n| *n > 90), "{agreed:?}");
}
