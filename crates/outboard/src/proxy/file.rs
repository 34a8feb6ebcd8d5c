//! Configuration file of the proxy, in TOML. All tables are validated, and errors have line
//! numbers.
//!
//! ```toml
//! [[listener]]
//! listen = "10.77.0.2:80"
//! mode = "http"                    # or "tls", "tcp"
//! default = "web"                  # a backend; without it, unmatched requests are refused
//! headers = ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via"]
//! header-policy = "append"         # or "replace": remove such fields of clients
//! keep-alive = true                # false with "replace": one request per connection
//! set-up = true                    # false: the host accepts the connections
//! tear-down = true                 # false: the host closes them
//! splice = true                    # false: the host relays, and sees all bytes
//!
//! [[listener.route]]
//! host = "api.example.com"         # or "*.example.com"; any host if omitted
//! path = "/v1"                     # any path if omitted
//! backend = "api"
//! splice = false                   # tear-down as well; true is limited by the listener
//!
//! [[backend]]
//! name = "web"
//! servers = ["10.77.0.1:8080", "app.example.com:8080", "srv:_http._tcp.example.com"]
//! balance = "round-robin"          # or "least", "maglev"
//! hash = "source"                  # or "host"; for maglev
//! check = "/health"                # if omitted, connecting is enough
//! check-host = "web.example.com"
//! check-interval-ms = 2000         # 0: no checks
//! check-timeout-ms = 2000
//! rise = 2
//! fall = 3
//! proxy-protocol = false
//! connections-max = 1000
//!
//! [limits]
//! connections-max = 32768
//! head-bytes-max = 16384
//! head-timeout-ms = 10000
//! connect-timeout-ms = 4000
//! idle-timeout-ms = 300000
//! retries = 3
//! ```

use std::path::Path;

use apps::proxy::{
    ForwardingPolicy, HashBy, HealthCheckConfig, InsertedFields, LoadBalancing, ProxyLimits,
    ProxyListener, ProxyMode, ProxyOffloads, ProxyPool, ProxyRoute,
};
use base::Duration;
use serde::Deserialize;
use toml::Spanned;

use super::plan::{BackendSpec, ListenArg, PoolPlan, ProxyPlan};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ProxyConfigFile {
    #[serde(default)]
    listener: Vec<Spanned<ListenerTable>>,
    #[serde(default)]
    backend: Vec<BackendTable>,
    #[serde(default)]
    limits: LimitsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ListenerTable {
    listen: Spanned<String>,
    mode: Spanned<String>,
    default: Option<Spanned<String>>,
    #[serde(default)]
    headers: Vec<Spanned<String>>,
    header_policy: Option<Spanned<String>>,
    keep_alive: Option<Spanned<bool>>,
    set_up: Option<bool>,
    tear_down: Option<bool>,
    splice: Option<bool>,
    #[serde(default)]
    route: Vec<RouteTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RouteTable {
    #[serde(default)]
    host: String,
    path: Option<Spanned<String>>,
    backend: Spanned<String>,
    tear_down: Option<bool>,
    splice: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BackendTable {
    name: Spanned<String>,
    servers: Vec<Spanned<String>>,
    balance: Option<Spanned<String>>,
    hash: Option<Spanned<String>>,
    check: Option<Spanned<String>>,
    check_host: Option<Spanned<String>>,
    check_interval_ms: Option<u32>,
    check_timeout_ms: Option<u32>,
    rise: Option<Spanned<u32>>,
    fall: Option<Spanned<u32>>,
    #[serde(default)]
    proxy_protocol: bool,
    connections_max: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LimitsTable {
    connections_max: Option<u32>,
    head_bytes_max: Option<u32>,
    head_timeout_ms: Option<u32>,
    connect_timeout_ms: Option<u32>,
    idle_timeout_ms: Option<u32>,
    retries: Option<u32>,
}

/// An error, with its byte offset in the text.
struct ProxyFileError(usize, String);

fn config_error<T>(at: &Spanned<T>, what: impl Into<String>) -> ProxyFileError {
    ProxyFileError(at.span().start, what.into())
}

/// Reads the file. Limits that it lacks are those of `usual`.
///
/// # Errors
/// One line: the file, the line number, and the fault.
pub(super) fn read(path: &Path, usual: &ProxyLimits) -> Result<ProxyPlan, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {shown}: {e}"))?;
    parse(&text, usual).map_err(|(line, what)| format!("{shown}:{line}: {what}"))
}

/// Parses the text. An error has its line number.
pub(super) fn parse(text: &str, usual: &ProxyLimits) -> Result<ProxyPlan, (usize, String)> {
    let line_of = |at: usize| {
        let before = text.as_bytes().get(..at).unwrap_or_default();
        before.iter().filter(|b| **b == b'\n').count() + 1
    };
    let file: ProxyConfigFile = toml::from_str(text).map_err(|e| {
        let what = e.message().lines().collect::<Vec<_>>().join(", ");
        (line_of(e.span().map_or(0, |span| span.start)), what)
    })?;
    plan(file, usual).map_err(|ProxyFileError(at, what)| (line_of(at), what))
}

fn plan(file: ProxyConfigFile, usual: &ProxyLimits) -> Result<ProxyPlan, ProxyFileError> {
    let mut pools: Vec<PoolPlan> = Vec::new();
    for table in &file.backend {
        if pools.iter().any(|plan| plan.pool.name == *table.name.get_ref()) {
            return Err(config_error(&table.name, "duplicate backend name"));
        }
        pools.push(backend(table)?);
    }
    let mut listeners: Vec<ProxyListener> = Vec::new();
    for table in &file.listener {
        let next = listener(table.get_ref(), &pools)?;
        if listeners.iter().any(|l| (l.addr, l.port) == (next.addr, next.port)) {
            return Err(config_error(&table.get_ref().listen, "duplicate listener address"));
        }
        listeners.push(next);
    }
    if listeners.is_empty() {
        return Err(ProxyFileError(0, "no [[listener]] defined".to_owned()));
    }
    Ok(ProxyPlan { listeners, pools, limits: limits(&file.limits, usual) })
}

fn listener(table: &ListenerTable, pools: &[PoolPlan]) -> Result<ProxyListener, ProxyFileError> {
    let listen: ListenArg =
        table.listen.get_ref().parse().map_err(|e| config_error(&table.listen, e))?;
    let find = |name: &Spanned<String>| {
        let found = pools.iter().position(|plan| plan.pool.name == *name.get_ref());
        let what = || format!("unknown backend `{}`", name.get_ref());
        found.ok_or_else(|| config_error(name, what()))
    };
    let mode = match table.mode.get_ref().as_str() {
        "http" => ProxyMode::Http,
        "tls" => ProxyMode::Tls,
        "tcp" => ProxyMode::Tcp,
        other => {
            let what = format!("unknown mode `{other}`; expected http, tls or tcp");
            return Err(config_error(&table.mode, what));
        }
    };
    if mode == ProxyMode::Tcp && (table.default.is_none() || !table.route.is_empty()) {
        let what = "mode tcp requires a default backend and cannot have routes";
        return Err(config_error(&table.mode, what));
    }
    if let Some(header) = table.headers.first().filter(|_| mode != ProxyMode::Http) {
        return Err(config_error(header, "only mode http supports headers"));
    }
    let policy = policy(table, mode)?;
    let mut insert = InsertedFields::default();
    for name in &table.headers {
        add_header(&mut insert, name.get_ref()).map_err(|e| config_error(name, e))?;
    }
    let mut routes = Vec::new();
    for route in &table.route {
        let path = route.path.as_ref().map_or("", |path| path.get_ref());
        if let Some(at) = route.path.as_ref().filter(|_| mode == ProxyMode::Tls) {
            return Err(config_error(at, "mode tls cannot route by path; use host"));
        }
        if let Some(at) = route.path.as_ref().filter(|p| !p.get_ref().starts_with('/')) {
            return Err(config_error(at, "path must start with a slash"));
        }
        let host = route.host.trim_end_matches('.').to_ascii_lowercase();
        let offloads = offloads(None, route.tear_down, route.splice);
        let pool = find(&route.backend)?;
        routes.push(ProxyRoute { host, path: path.to_owned(), pool, offloads });
    }
    Ok(ProxyListener {
        addr: listen.addr,
        port: listen.port,
        mode,
        routes,
        default: table.default.as_ref().map(find).transpose()?,
        insert,
        policy,
        keep_alive: table
            .keep_alive
            .as_ref()
            .map_or(policy == ForwardingPolicy::Append, |keep| *keep.get_ref()),
        offloads: offloads(table.set_up, table.tear_down, table.splice),
    })
}

/// Returns the offloads of a table: all that it does not exclude.
fn offloads(set_up: Option<bool>, tear_down: Option<bool>, splice: Option<bool>) -> ProxyOffloads {
    ProxyOffloads {
        setup: set_up.unwrap_or(true),
        teardown: tear_down.unwrap_or(true),
        splice: splice.unwrap_or(true),
    }
}

fn policy(table: &ListenerTable, mode: ProxyMode) -> Result<ForwardingPolicy, ProxyFileError> {
    let Some(given) = &table.header_policy else { return Ok(ForwardingPolicy::Append) };
    if mode != ProxyMode::Http {
        return Err(config_error(given, "only mode http supports headers"));
    }
    let policy = match given.get_ref().as_str() {
        "append" => ForwardingPolicy::Append,
        "replace" => ForwardingPolicy::Replace,
        other => {
            let what = format!("unknown header-policy `{other}`; expected append or replace");
            return Err(config_error(given, what));
        }
    };
    match &table.keep_alive {
        Some(keep) if *keep.get_ref() && policy == ForwardingPolicy::Replace => {
            let what = "keep-alive must be false with header-policy \"replace\", which inspects \
                        only the first request of a connection";
            Err(config_error(keep, what))
        }
        _ => Ok(policy),
    }
}

/// Enables a header field by its name.
///
/// # Errors
/// Fails if the name is unknown, and lists the known ones.
pub(super) fn add_header(insert: &mut InsertedFields, name: &str) -> Result<(), String> {
    match name.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => insert.x_forwarded_for = true,
        "x-forwarded-proto" => insert.x_forwarded_proto = true,
        "forwarded" => insert.forwarded = true,
        "via" => insert.via = true,
        _ => {
            return Err(format!(
                "unknown header `{name}`; expected x-forwarded-for, x-forwarded-proto, forwarded \
                 or via"
            ));
        }
    }
    Ok(())
}

fn backend(table: &BackendTable) -> Result<PoolPlan, ProxyFileError> {
    let mut members = Vec::new();
    for server in &table.servers {
        members.push(server.get_ref().parse::<BackendSpec>().map_err(|e| config_error(server, e))?);
    }
    let hash = match table.hash.as_ref().map(|hash| (hash, hash.get_ref().as_str())) {
        None | Some((_, "source")) => HashBy::Source,
        Some((_, "host")) => HashBy::Host,
        Some((at, other)) => {
            return Err(config_error(
                at,
                format!("unknown hash `{other}`; expected source or host"),
            ));
        }
    };
    let balance = match table.balance.as_ref().map(|b| (b, b.get_ref().as_str())) {
        None | Some((_, "round-robin")) => LoadBalancing::RoundRobin,
        Some((_, "least")) => LoadBalancing::Least,
        Some((_, "maglev")) => LoadBalancing::Maglev(hash),
        Some((at, other)) => {
            let what =
                format!("unknown balance method `{other}`; expected round-robin, least or maglev");
            return Err(config_error(at, what));
        }
    };
    let usual = HealthCheckConfig::default();
    let ms = |given: Option<u32>, usual| given.map_or(usual, |ms| Duration::from_millis(ms.into()));
    let text = |given: &Option<Spanned<String>>| match given {
        Some(text) => match check_text(text.get_ref()) {
            Ok(()) => Ok(text.get_ref().clone()),
            Err(what) => Err(config_error(text, what)),
        },
        None => Ok(String::new()),
    };
    let path = match &table.check {
        Some(path) => check_path(path.get_ref()).map_err(|what| config_error(path, what))?,
        None => "",
    };
    let probes = |given: &Option<Spanned<u32>>, usual| match given {
        Some(given) if *given.get_ref() == 0 => {
            Err(config_error(given, "number of checks must be at least 1"))
        }
        given => Ok(given.as_ref().map_or(usual, |given| *given.get_ref())),
    };
    let check = HealthCheckConfig {
        path: path.to_owned(),
        host: text(&table.check_host)?,
        interval: ms(table.check_interval_ms, usual.interval),
        timeout: ms(table.check_timeout_ms, usual.timeout),
        rise: probes(&table.rise, usual.rise)?,
        fall: probes(&table.fall, usual.fall)?,
    };
    let unlimited = ProxyPool::default();
    let pool = ProxyPool {
        name: table.name.get_ref().clone(),
        balance,
        backends: Vec::new(),
        connections_max: table.connections_max.unwrap_or(unlimited.connections_max),
        proxy_protocol: table.proxy_protocol,
        check,
    };
    Ok(PoolPlan { pool, members })
}

/// Checks the path of a health check, and returns it.
///
/// # Errors
/// Fails if the path does not begin with a slash, or has characters other than printable ASCII.
pub(super) fn check_path(path: &str) -> Result<&str, String> {
    check_text(path)?;
    if path.starts_with('/') { Ok(path) } else { Err("path must start with a slash".to_owned()) }
}

/// Checks text that is sent in a health check's request: printable ASCII without spaces.
///
/// # Errors
/// Fails if the text has other characters.
fn check_text(text: &str) -> Result<(), String> {
    if text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(())
    } else {
        Err("expected printable ASCII without spaces; use percent-encoding".to_owned())
    }
}

fn limits(table: &LimitsTable, usual: &ProxyLimits) -> ProxyLimits {
    let ms = |given: Option<u32>, usual| given.map_or(usual, |ms| Duration::from_millis(ms.into()));
    let size = |given: Option<u32>, usual| given.map_or(usual, |n| n as usize);
    let head_bytes_max = size(table.head_bytes_max, usual.head_bytes_max);
    ProxyLimits {
        connections_max: size(table.connections_max, usual.connections_max),
        head_bytes_max,
        request_line_bytes_max: usual.request_line_bytes_max.min(head_bytes_max),
        head_timeout: ms(table.head_timeout_ms, usual.head_timeout),
        connect_timeout: ms(table.connect_timeout_ms, usual.connect_timeout),
        idle_timeout: ms(table.idle_timeout_ms, usual.idle_timeout),
        retries: table.retries.unwrap_or(usual.retries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in this module's documentation.
    fn example() -> String {
        let source = include_str!("file.rs");
        let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
        let lines = lines.skip_while(|line| !line.contains("```toml")).skip(1);
        let lines = lines.take_while(|line| !line.contains("```"));
        lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
    }

    const SMALL: &str = "[[listener]]
listen = ':80'
mode = 'http'
default = 'a'

[[backend]]
name = 'a'
servers = ['10.0.0.1:80']
";

    #[test]
    fn the_example_of_the_documentation() {
        let text = format!("{}\n[[backend]]\nname = 'api'\nservers = []\n", example());
        let plan = parse(&text, &ProxyLimits::default()).unwrap();
        let listener = &plan.listeners[0];
        assert_eq!(
            (listener.port, listener.mode, listener.default),
            (80, ProxyMode::Http, Some(0))
        );
        assert_eq!(
            (listener.routes[0].host.as_str(), listener.routes[0].pool),
            ("api.example.com", 1)
        );
        assert!(listener.insert.via && listener.insert.forwarded && listener.keep_alive);
        assert_eq!(listener.offloads, ProxyOffloads::ALL);
        let no_splice = ProxyOffloads { splice: false, ..ProxyOffloads::ALL };
        assert_eq!(listener.routes[0].offloads, no_splice);
        assert_eq!(plan.pools[0].members.len(), 3);
        assert_eq!(plan.pools[0].pool.check.path, "/health");
        assert_eq!(plan.limits, ProxyLimits::default());
        assert_eq!(plan.names().count(), 2);
    }

    #[test]
    fn errors_have_their_line() {
        let change = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            parse(&SMALL.replace(from, to), &ProxyLimits::default()).unwrap_err()
        };
        for (from, to, line, what) in [
            ("mode = 'http'", "mode = 'htpp'", 3, "unknown mode `htpp`"),
            ("mode = 'http'", "mode = 'tls'\nheaders = ['via']", 4, "only mode http"),
            ("default = 'a'", "default = 'b'", 4, "unknown backend `b`"),
            ("':80'", "'80'", 2, "invalid listen address `80`"),
            ("['10.0.0.1:80']", "['10.0.0.1:80',\n 'x']", 9, "invalid backend `x`"),
            ("name = 'a'", "name = 'a'\nbalance = 'random'", 8, "unknown balance method `random`"),
            ("name = 'a'", "name = 'a'\nblance = 'least'", 8, "unknown field `blance`"),
            ("name = 'a'", "name = 'a'\ncheck = 'health'", 8, "path must start with a slash"),
            ("name = 'a'", "name = 'a'\ncheck = '/a b'", 8, "expected printable ASCII"),
            ("name = 'a'", "name = 'a'\nrise = -1", 8, "invalid value"),
            ("name = 'a'", "name = 'a'\nfall = 0", 8, "must be at least 1"),
            ("['10.0.0.1:80']", "['10.0.0.1:0']", 8, "invalid backend `10.0.0.1:0`"),
            ("name = 'a'", "name = 'a", 7, "invalid literal string"),
            (
                "[[backend]]",
                "[[backend]]\nname = 'a'\nservers = []\n[[backend]]",
                10,
                "duplicate backend name",
            ),
            ("mode = 'http'", "mode = 'tcp'\nroute = [{backend = 'a'}]", 3, "mode tcp requires"),
            ("mode = 'http'", "mode = 'http'\nroute = [{path = 'x', backend = 'a'}]", 4, "slash"),
            // The route is not known when the connection is accepted.
            (
                "mode = 'http'",
                "mode = 'http'\nroute = [{set-up = false, backend = 'a'}]",
                4,
                "unknown field `set-up`",
            ),
        ] {
            let (at, said) = change(from, to);
            assert!(at == line && said.contains(what), "{to}: {at}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
        let empty = parse("", &ProxyLimits::default());
        assert_eq!(empty, Err((1, "no [[listener]] defined".to_owned())));
    }

    #[test]
    fn limits_of_the_file_replace_those_of_the_options() {
        let usual = ProxyLimits { connections_max: 5, retries: 9, ..ProxyLimits::default() };
        let text = format!("{SMALL}\n[limits]\nretries = 1\n");
        let limits = parse(&text, &usual).unwrap().limits;
        assert_eq!((limits.connections_max, limits.retries), (5, 1));
    }
}
