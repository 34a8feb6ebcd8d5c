//! `outboard doctor` in a namespace with a veth pair: with and without privileges, and that it
//! changes nothing.

use std::process::Output;
use std::sync::Arc;

use interop::{Files, Netns, TestServer, outboard, output_text, run, run_for_output};
use serde_json::Value;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

fn namespace() -> Netns {
    let netns = Netns::new();
    let script = "ip link add v0 type veth peer name v1 && ip addr add 10.77.0.5/20 dev v0 && \
                  ip link set v0 up && ip link set v1 up && ip route add default via 10.77.0.1";
    run_for_output(netns.command("sh").args(["-c", script]));
    netns
}

fn doctor(netns: &Netns, args: &[&str]) -> Output {
    run(outboard(netns).arg("doctor").args(args))
}

/// Returns the finding of a check.
fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let all = report["checks"].as_array().expect("a list");
    all.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check}"))
}

#[test]
fn recommends_a_link_and_changes_nothing() {
    let (netns, files) = (namespace(), Files::new(TMP));
    files.write("a.txt", "text");
    let state = || run_for_output(netns.command("ip").args(["-d", "addr"]));
    let before = state();
    let folder = files.path().to_string_lossy().into_owned();
    let output = doctor(&netns, &["--folder", &folder, "--json"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["usable"], true);
    // The interface of the default route.
    let interface = finding(&report, "interface");
    assert_eq!(interface["status"], "ok", "{report:#}");
    assert!(interface["found"].as_str().is_some_and(|found| found.starts_with("v0 up, veth")));
    assert_eq!(finding(&report, "queues")["found"], "1 receive, 1 transmit");
    let direct = finding(&report, "direct I/O")["found"].as_str().expect("text");
    assert!(direct.starts_with(&folder) && !direct.contains("no file"), "{direct}");
    let link = report["recommendation"]["link"].as_str().expect("a link").to_owned();
    assert!(["macvtap:v0", "packet:v0"].contains(&&*link), "{link}");
    let commands = report["recommendation"]["commands"].as_array().expect("a list");
    let start = commands.last().and_then(Value::as_str).expect("a command");
    let head =
        format!("outboard serve DIR --link {link} --addr FREE_ADDRESS/20 --gateway 10.77.0.1");
    assert!(start.starts_with(&head), "{start}");
    assert_eq!(state(), before);

    let output = doctor(&netns, &["v1"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\ninterface        ok       v1 up, veth, MTU 1500\n"), "{text}");
    assert!(text.contains("\ntake ") && text.contains("  outboard serve DIR --link "), "{text}");
}

/// The offloads and the state of the interface are those that ethtool and ip set.
#[test]
fn finds_what_is_slow_or_down() {
    let netns = namespace();
    let script = "ethtool -K v0 tso off gso off gro off >/dev/null && ip link set v1 down";
    run_for_output(netns.command("sh").args(["-c", script]));
    let output = doctor(&netns, &["v0", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let offloads = finding(&report, "offloads");
    assert_eq!(
        (&offloads["status"], &offloads["found"]),
        (&"slow".into(), &"TSO, GSO, GRO off".into())
    );
    let fix = offloads["fix"].as_str().expect("a command");
    assert_eq!(fix, "sudo ethtool -K v0 tso on gso on gro on");
    let interface = finding(&report, "interface");
    assert_eq!(interface["status"], "missing");
    run_for_output(netns.command("sh").args(["-c", fix.trim_start_matches("sudo ")]));
    let output = doctor(&netns, &["v0", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(finding(&report, "offloads")["status"], "ok");
}

/// The verdict on an XDP link: the MTU that it names is one with which the link opens.
#[test]
fn judges_xdp_links() {
    let (netns, files) = (namespace(), Files::new(TMP));
    files.write("a.txt", "text");
    let verdict = |netns: &Netns| {
        let output = doctor(netns, &["v0", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let links = report["links"].as_array().expect("a list").clone();
        let verdict = links.into_iter().find(|verdict| verdict["link"] == "xdp:v0");
        verdict.unwrap_or_else(|| panic!("{report:#}"))
    };
    let usable = verdict(&netns);
    assert_eq!(usable["obstacle"], Value::Null, "{usable}");
    assert!(usable["why"].as_str().is_some_and(|why| why.contains("peer")), "{usable}");
    run_for_output(netns.command("ip").args(["link", "set", "v0", "mtu", "16000"]));
    let refused = verdict(&netns);
    assert_eq!(refused["obstacle"], "unavailable", "{refused}");
    let fix = refused["fix"].as_str().expect("a command").trim_start_matches("sudo ").to_owned();
    run_for_output(netns.command("sh").args(["-c", &fix]));
    assert_eq!(verdict(&netns)["obstacle"], Value::Null);
    let folder = files.path().to_string_lossy().into_owned();
    let network = ["--link", "xdp:v0", "--addr", "10.77.0.2/20"];
    let server = TestServer::serve_namespace(Arc::new(netns), &folder, &network, &["--tls"]);
    server.expect_no_alarm();
}

/// Without privileges no link can be used, and the exit code says so.
#[test]
fn without_privileges() {
    let netns = namespace();
    let program = outboard(&netns);
    let mut plain = netns.command("setpriv");
    plain.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
    plain.arg(program.get_args().last().expect("the program"));
    let output = run(plain.args(["doctor", "v0", "--json"]));
    let said = output_text(&output);
    assert_eq!(output.status.code(), Some(77), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["usable"], &report["recommendation"]), (&false.into(), &Value::Null));
    assert_eq!(finding(&report, "capabilities")["found"], "none");
    let line = "outboard: no link can be used: macvtap:v0: needs CAP_NET_ADMIN; run with sudo";
    assert!(said.contains(line), "{said}");
    let output = doctor(&netns, &["none"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(output_text(&output).contains("no interface none; `ip link` lists them"));
    assert_eq!(doctor(&netns, &["v0", "--folder", "/none"]).status.code(), Some(66));
}
