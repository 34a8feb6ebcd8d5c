#!/bin/bash
# Prints the help texts and provokes the error messages that a user can see, each below the command
# that provokes it, with its exit code: to be read as a whole after messages have changed.
#
# Usage: scripts/messages.sh OUTBOARD LAB. Needs root, for network namespaces: the script runs itself
# in a new one, so that it changes no interface of the machine. Messages about hostile packets are
# asserted by tests; they depend on the peer and are not here.
set -uo pipefail
if [ "${MESSAGES_NAMESPACE:-}" = "" ]; then
    exec env MESSAGES_NAMESPACE=1 unshare --net --mount --pid --fork --mount-proc "$0" "$@"
fi
outboard=$(realpath "$1")
lab=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export XDG_RUNTIME_DIR=$dir
cd "$dir" || exit 1
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1

# Runs a command and shows what it prints. `Q` stands for the program.
try() {
    printf '\n$ %s\n' "$*" | sed "s|$outboard|outboard|; s|$lab|outboard-lab|"
    timeout 5 "$@" 2>&1 </dev/null | sed "s|$dir|DIR|g" 
    echo "=> ${PIPESTATUS[0]}"
}
o() { try "$outboard" "$@"; }
title() { printf '\n======== %s\n' "$1"; }
# Starts a server in the background and waits for its control socket.
start() {
    local socket=$1
    shift
    "$outboard" "$@" >>"$dir/started.log" 2>&1 &
    for _ in $(seq 100); do
        [ -S "$socket" ] && return
        sleep 0.1
    done
    echo "did not start: $*"
    cat "$dir/started.log"
}

title "Help"
o --help
o --version
for verb in serve proxy nvme stat ss "nvme target" "nvme discover" "nvme list" "nvme read" \
    "nvme write" "nvme fio" "nvme nbd" "nvme ctl" "nvme ctl list" "nvme ctl connections" \
    "nvme ctl add" "nvme ctl remove" "nvme ctl resize" "nvme key" "nvme key generate" \
    "nvme key show"; do
    # shellcheck disable=SC2086
    try "$outboard" $verb --help
done
try "$lab" --help
try "$lab" sim --help
try "$lab" bench --help
"$lab" bench --help | awk '/^  [a-z]/ { print $1 }' | grep -v '^help$' | while read -r bench; do
    try "$lab" bench "$bench" --help
done

title "serve: options"
mkdir site
echo hello >site/index.html
o
o srve
o serve
o serve nowhere
o serve site/index.html
o serve site --link tap:
o serve site --link eth0
o serve site --link tap:a/b
o serve site --link tap:0123456789abcdef
o serve site --link tap:..
o serve site --link tap:lo
o serve site --addr 10.77.0.300/24
o serve site --addr 10.77.0.2
o serve site --addr 10.77.0.2/33
o serve site --gateway 1.2.3
o serve site --port 0
o serve site --port 70000
o serve site --queues 0
o serve site --threads 3
o serve site --offload splce
o serve site --congestion bbr
o serve site --drop 2
o serve site --drop x
o serve site --http3
o serve site --http
o serve site --tls --http 80 --redirect-http 81
o serve site --tls --tls-cert cert.pem
o serve site --tls --tls-cert cert.pem --tls-key key.pem
echo text >text.pem
o serve site --tls --tls-cert text.pem --tls-key text.pem
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=a 2>/dev/null
openssl genrsa -out other.pem 2048 2>/dev/null
o serve site --tls --tls-cert cert.pem --tls-key text.pem
o serve site --tls --tls-cert cert.pem --tls-key other.pem
o serve site --tls --tls-cert cert.pem --tls-cert cert.pem --tls-key key.pem
o serve site --error-page 404
o serve site --error-page 999=a.html
o serve site --error-page 404=none.html
o serve site --error-page 404=site/index.html --error-page 404=site/index.html
o serve site --header 'a b: c'
o serve site --cache-control nothing
o serve site --file-memory 0
o serve site --disk tape
o serve site --metrics 127.0.0.1
o serve site --metrics 192.0.2.1:80
o serve site --access-log nowhere/log
o serve site --pcap nowhere/a.pcapng
o serve site --control nowhere/socket
o serve site --tls --http3 --qlog nowhere
o serve site --http 80 --tls --port 80

title "proxy: options"
o proxy
o proxy --listen :80
o proxy --listen 80 --backend 10.77.0.1:80
o proxy --listen :80 --backend nohost
o proxy --listen :80 --backend 10.77.0.1:0
o proxy --listen :80 --backend 10.77.0.1:80 --mode udp
o proxy --listen :80 --backend 10.77.0.1:80 --balance random
o proxy --listen :80 --backend 10.77.0.1:80 --health-check health
o proxy --listen :80 --backend 10.77.0.1:80 --health-check '/a b'
o proxy --listen :80 --backend 10.77.0.1:80 --header no-such-field
o proxy --listen :80 --backend 10.77.0.1:80 --queues 2
o proxy --listen :80 --backend 10.77.0.1:80 --backend-link tap:ob0
o proxy --listen :80 --backend 10.77.0.1:80 --backend-addr 10.78.0.2/24
o proxy --listen :80 --backend 10.77.0.1:80 --config a.toml
o proxy --listen 192.0.2.1:80 --backend 10.77.0.1:80
o proxy --config none.toml

title "proxy: configuration files"
pool="[[backend]]
name = 'a'
servers = ['10.77.0.1:80']"
config() {
    printf '%s\n' "$1" >proxy.toml
    printf '\n%s' "$1" | sed 's/^/    /'
    o proxy --config proxy.toml
}
config ""
config "listen = ':80'"
config "[[listener]]
listen = ':80'
mode = 'htpp'
default = 'a'
$pool"
config "[[listener]]
listen = '80'
mode = 'http'
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
default = 'b'
$pool"
config "[[listener]]
listen = ':80'
mode = 'tcp'
route = [{ backend = 'a' }]
$pool"
config "[[listener]]
listen = ':80'
mode = 'tls'
headers = ['via']
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'tls'
header-policy = 'replace'
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
header-policy = 'remove'
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
header-policy = 'replace'
keep-alive = true
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
headers = ['x-none']
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'tls'
route = [{ path = '/x', backend = 'a' }]
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
route = [{ path = 'x', backend = 'a' }]
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
default = 'a'
[[listener]]
listen = ':80'
mode = 'http'
default = 'a'
$pool"
config "[[listener]]
listen = ':80'
mode = 'http'
default = 'a'
$pool
$pool"
for line in "balance = 'random'" "hash = 'url'" "blance = 'least'" "check = 'health'" "check = '/a b'" \
    "rise = -1" "fall = 0" "proxy-protocol = 3" "weight = 2" "name = 'a"; do
    config "[[listener]]
listen = ':80'
mode = 'http'
default = 'a'
$pool
$line"
done

title "nvme target: options"
truncate -s 1M disk.img
truncate -s 100 small.img
o nvme target
o nvme target --namespace none.img
o nvme target --namespace site
o nvme target --namespace small.img
o nvme target --namespace disk.img --namespace disk.img
o nvme target --namespace disk.img --block-size 1000
o nvme target --namespace disk.img --nqn disks
o nvme target --namespace disk.img --queues 2
o nvme target --namespace disk.img --tls-cert cert.pem
o nvme target --namespace disk.img --tls --tls-psk key
o nvme target --namespace disk.img --tls --tls-psk nqn.2026-11.org.example:host=key
o nvme target --namespace disk.img --tls --tls-psk host=NVMeTLSkey-1:01:AAAA:
o nvme target --namespace disk.img --tls --tls-psk-file none.txt
echo "host NVMeTLSkey-1" >keys.txt
o nvme target --namespace disk.img --tls --tls-psk-file keys.txt
: >keys.txt
o nvme target --namespace disk.img --tls --tls-psk-file keys.txt
o nvme target --namespace disk.img --allow host

title "nvme key"
o nvme key generate --hash md5
o nvme key show
o nvme key show NVMeTLSkey-1:01:AAAA: --hostnqn nqn.2026-11.org.example:host

title "A running server"
start "$dir/outboard-ob0.sock" serve site --link tap:ob0 --gateway 10.77.0.1 --drain 1
o serve site --link tap:ob0
o serve site --link tap:ob1 --control "$dir/outboard-ob0.sock"
o serve site --link tap:ob1
o serve site --link tap:ob1 --addr 10.79.0.2/24 --peer 10.77.0.1/24
try curl -sS http://10.77.0.2/
try curl -sSi http://10.77.0.2/none
try curl -sSi -X POST http://10.77.0.2/
o stat --json
o stat
o ss
o ss --json
o stat --control none.sock
o stat --link tap:none
o nvme ctl list --control "$dir/outboard-ob0.sock"

title "A running proxy"
start "$dir/outboard-ob2.sock" proxy --link tap:ob2 --addr 10.80.0.2/24 --peer 10.80.0.1/24 \
    --gateway 10.80.0.1 --listen :80 --backend 10.77.0.2:80 --drain 1
try curl -sSi http://10.80.0.2/
try curl -sSi -H 'Host: a b' http://10.80.0.2/
o stat --link tap:ob2
o ss --link tap:ob2

title "A running NVMe/TCP target"
start "$dir/outboard-ob3.sock" nvme target --namespace disk.img --link tap:ob3 \
    --addr 10.81.0.2/24 --peer 10.81.0.1/24 --gateway 10.81.0.1 --drain 1
net=(--link tap:ob4 --addr 10.82.0.2/24 --peer 10.82.0.1/24 --gateway 10.82.0.1)
o nvme target --namespace disk.img "${net[@]}"
o nvme discover
o nvme discover 10.81.0.300
o nvme discover 10.81.0.2 "${net[@]}"
o nvme list 10.81.0.2 "${net[@]}"
o nvme list 10.81.0.2 "${net[@]}" --nqn nqn.2026-11.org.example:none
o nvme list 10.81.0.2:4421 "${net[@]}"
o nvme list 10.81.0.2 "${net[@]}" --hostnqn host
o nvme list 10.81.0.2 "${net[@]}" --tls
o nvme list 10.81.0.2 "${net[@]}" --tls --insecure 
o nvme list 10.81.0.2 "${net[@]}" --tls --tls-ca none.pem
o nvme list 10.81.0.2 "${net[@]}" --tls --tls-ca text.pem
o nvme list 10.81.0.2 "${net[@]}" --tls-psk x
o nvme list 10.77.0.2:80 "${net[@]}"
o nvme read 10.81.0.2 "${net[@]}" --nsid 2 --length 512
o nvme read 10.81.0.2 "${net[@]}" --length 100
o nvme read 10.81.0.2 "${net[@]}" --offset 1048576 --length 512
o nvme read 10.81.0.2 "${net[@]}" --length 512 --json
o nvme read 10.81.0.2 "${net[@]}" --length 512 --output nowhere/file
o nvme write 10.81.0.2 "${net[@]}"
o nvme write 10.81.0.2 "${net[@]}" --input none
o nvme write 10.81.0.2 "${net[@]}" --input small.img
o nvme fio 10.81.0.2 "${net[@]}" --bs 1000
o nvme fio 10.81.0.2 "${net[@]}" --size 4096
o nvme fio 10.81.0.2 "${net[@]}" --requests 100
o nvme fio 10.81.0.2 "${net[@]}" --requests 100 --writes 50
o nvme nbd 10.81.0.2 "${net[@]}" --listen 192.0.2.1:1
socket=(--link tap:ob3)
o nvme ctl list "${socket[@]}"
o nvme ctl connections "${socket[@]}"
o nvme ctl add none.img "${socket[@]}"
o nvme ctl add disk.img "${socket[@]}"
o nvme ctl add site "${socket[@]}"
o nvme ctl add small.img "${socket[@]}"
truncate -s 2M second.img
o nvme ctl add second.img --nsid 1 "${socket[@]}"
o nvme ctl add second.img --nsid 5000 "${socket[@]}"
o nvme ctl add second.img "${socket[@]}"
o nvme ctl resize 2 --size 1 "${socket[@]}"
o nvme ctl resize 2 --size 1048576 "${socket[@]}"
o nvme ctl resize 9 "${socket[@]}"
o nvme ctl remove 2 "${socket[@]}"
o nvme ctl remove 2 "${socket[@]}"

title "outboard-lab"
try "$lab" sim --seeds 0
try "$lab" sim --seed x
try "$lab" bench nothing
try "$lab" bench quic --sizes 0
try "$lab" bench nvme --paths nothing
try "$lab" bench serve-live --rounds 0

title "End"
kill %1 %2 %3 2>/dev/null
wait
sed "s|$dir|DIR|g" "$dir/started.log"
