#!/bin/bash
# Serves examples/site over the TAP device ob0 until Ctrl-C, or for the time of the command in $CMD.
#
#   scripts/run.sh            CMD='curl -s http://10.77.0.2/' scripts/run.sh
#
# Root is needed to make a TAP device. Without it, and without a sudo that asks nothing, the same
# runs in a private user and network namespace, with a shell or the command inside; nothing outside
# of it can reach the server. Called by `make run`, which builds first.
set -euo pipefail
cd "$(dirname "$0")/.."

outboard=${CARGO_TARGET_DIR:-target}/release/outboard
serve=(serve examples/site --link tap:ob0
    --addr 10.77.0.2/24 --peer 10.77.0.1/24
    --addr fd77::2/64 --peer fd77::1/64)
CMD=${CMD:-}

say() { echo "run: $*" >&2; }

# Runs the rest as the user who called sudo, where one did.
as_caller() {
    if [ -n "${SUDO_UID:-}" ]; then
        sudo -n -u "#$SUDO_UID" -- "$@"
    else
        "$@"
    fi
}

# Serves in the background for as long as the command "$@" runs, and ends with its exit code.
serve_while() {
    # What the server prints comes through descriptor 3, to see when it is ready.
    exec 3< <(exec "$outboard" "${serve[@]}")
    server=$!
    trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
    local line ready=no
    while [ "$ready" = no ] && IFS= read -r line <&3; do
        echo "$line" >&2
        case $line in "serving http://"*) ready=yes ;; esac
    done
    if [ "$ready" = no ]; then
        say "the server did not start"
        exit 1
    fi
    cat <&3 >&2 &
    exec 3<&-
    local status=0
    "$@" || status=$?
    exit "$status"
}

case ${1:-} in
--inside) # the private namespace
    ip link set lo up
    if [ -n "$CMD" ]; then
        serve_while bash -c "$CMD"
    else
        say "this is a shell in the server's namespace; leave it with Ctrl-D"
        serve_while "${SHELL:-/bin/bash}" -i
    fi
    ;;
esac

if [ "$(id -u)" = 0 ]; then
    [ -n "$CMD" ] || exec "$outboard" "${serve[@]}"
    serve_while as_caller bash -c "$CMD"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    exec sudo -n env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-}" CMD="$CMD" scripts/run.sh
elif unshare -rn true 2>/dev/null; then
    say "not root and no sudo without a password: running in a private network namespace"
    exec unshare -rn scripts/run.sh --inside
else
    say "not root, and this machine refuses user namespaces: run 'sudo make run'"
    exit 77 # EX_NOPERM
fi
