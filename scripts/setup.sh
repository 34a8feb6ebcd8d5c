#!/bin/sh
# Installs what is missing on Debian or Ubuntu: to build and run; with `test` also to test, with
# `bench` also to measure beside other programs.
# Says nothing where nothing is missing, and refreshes the package lists only where something is.
#
#   scripts/setup.sh [test|bench]
set -eu

MSRV_MINOR=85 # rust-version in Cargo.toml is 1.85
purpose=${1:-build}
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

say() { echo "setup: $*" >&2; }
fail() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" = 0 ]; }
as_root() { if is_root; then "$@"; else sudo "$@"; fi; }

# Says in one line what to do where we cannot: $* are the packages.
check_can_install() {
    have apt-get || fail "no apt-get on this machine; please install: $*"
    is_root || have sudo || fail "not root and no sudo; please run as root: apt-get install $*"
}

lists_are_fresh=no
refresh_lists() {
    [ "$lists_are_fresh" = no ] || return 0
    as_root apt-get update -qq >&2 || fail "apt-get update failed: is the network there?"
    lists_are_fresh=yes
}

# Packages bring services (nginx); policy-rc.d keeps dpkg from starting them while we install.
POLICY=/usr/sbin/policy-rc.d
with_services_off() {
    if [ -e "$POLICY" ]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
    with_status=0
    "$@" || with_status=$?
    as_root rm -f "$POLICY"
    return "$with_status"
}

apt_install() {
    check_can_install "$@"
    refresh_lists
    say "installing $*"
    log=$(mktemp)
    if ! with_services_off as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        fail "apt-get install failed for: $*"
    fi
    rm -f "$log"
}

# What apt would install as package $1, empty where there is none.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9].*\)/\1/p'; }

# Whether version 1.N... in $1 has N new enough.
is_new_enough() {
    minor=$(echo "$1" | sed -n 's/^1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$MSRV_MINOR" ]
}

# As $1 of rustc --version; fails where rustup's stand-in is there without a toolchain.
rust_is_there() {
    have cargo && have rustc && is_new_enough "$(rustc --version 2>/dev/null | cut -d' ' -f2)"
}

install_rust() {
    if have rustup; then
        say "installing Rust with rustup"
        rustup toolchain install stable --profile minimal --no-self-update >&2
        rust_is_there || rustup default stable >&2
    else
        check_can_install rustc cargo
        refresh_lists
        if is_new_enough "$(candidate rustc)"; then
            apt_install rustc cargo
        elif [ -n "$(candidate rustup)" ]; then
            apt_install rustup
            rustup default stable >&2
        else
            say "installing Rust with the installer of rustup.rs"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
                RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y -q --profile minimal \
                    --default-toolchain stable --no-modify-path >&2
        fi
    fi
    rust_is_there || fail "Rust 1.$MSRV_MINOR or newer is needed; see https://rustup.rs"
}

install_rust_tools() {
    components=
    cargo fmt --version >/dev/null 2>&1 || components="$components rustfmt"
    cargo clippy --version >/dev/null 2>&1 || components="$components clippy"
    [ -n "$components" ] || return 0
    # shellcheck disable=SC2086 # a list of words
    if have rustup; then
        rustup -q component add $components >&2
    else
        apt_install rustfmt rust-clippy
    fi
}

# aioquic is no package of Debian 12: it comes by pip, in versions that we name, to an environment
# of its own.
install_aioquic() {
    wanted=$(dirname "$0")/../interop/clients/requirements.txt
    venv=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/aioquic
    ! cmp -s "$wanted" "$venv/installed.txt" || return 0
    say "installing aioquic with pip"
    /usr/bin/python3 -m venv --clear "$venv" >&2 || fail "cannot make $venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$wanted" >&2 ||
        fail "pip install -r $wanted failed: is the network there?"
    cp "$wanted" "$venv/installed.txt"
}

# The generator of the book, in the version that the pages are looked at with.
install_mdbook() {
    wanted=0.5.4
    tools=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/tools
    [ "$("$tools/bin/mdbook" --version 2>/dev/null)" != "mdbook v$wanted" ] || return 0
    say "building mdbook $wanted"
    cargo install -q mdbook --version "$wanted" --locked --no-default-features \
        --features search --root "$tools" >&2 || fail "cannot build mdbook $wanted: is the network there?"
}

# A kernel that speaks NVMe/TCP, for the tests' virtual machine.
install_linux() {
    vm=$(dirname "$0")/../interop/vm
    linux=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/linux
    wanted=$(cat "$vm"/* | cksum)
    [ "$(cat "$linux/made" 2>/dev/null)" != "$wanted" ] || return 0
    [ "$(uname -m)" = x86_64 ] || fail "the tests with a virtual machine need x86-64"
    say "taking Debian 13's kernel apart"
    "$vm/make.sh" "$linux" || fail "cannot make the tests' virtual machine"
    echo "$wanted" >"$linux/made"
}

packages=
# Program $1 comes with package $2.
need() { have "$1" || packages="$packages $2"; }
# File $1 comes with package $2.
need_file() { [ -e "$1" ] || packages="$packages $2"; }

need cc gcc
need_file /usr/include/stdlib.h libc6-dev
need curl curl
need_file /etc/ssl/certs/ca-certificates.crt ca-certificates
need git git
need ip iproute2
need unshare util-linux
if [ "$purpose" = test ]; then
    need apache2 apache2-bin
    need chromium chromium
    need cpio cpio
    busybox 2>/dev/null | grep -q insmod || packages="$packages busybox-static"
    need dnsmasq dnsmasq-base
    need dot graphviz
    need ethtool ethtool
    need gnutls-cli gnutls-bin
    need jq jq
    need nbdcopy libnbd-bin
    need nginx nginx-light
    need node nodejs
    need mke2fs e2fsprogs
    need ping iputils-ping
    need qemu-system-x86_64 qemu-system-x86
    need openssl openssl
    need parallel parallel
    /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || packages="$packages python3-venv"
    need redis-benchmark redis-tools
    need redis-server redis-server
    need tshark tshark
    need wrk wrk
    need zstd zstd
fi
if [ "$purpose" = bench ]; then
    need ethtool ethtool
    need haproxy haproxy
    need nginx nginx-light
    need go golang-go
    need gtlsserver ngtcp2-server
    need setpriv util-linux
    need systemd-socket-activate systemd
    need wrk wrk
fi
# shellcheck disable=SC2086 # a list of words
[ -z "$packages" ] || apt_install $packages
rust_is_there || install_rust
[ "$purpose" != test ] || install_rust_tools
[ "$purpose" != test ] || install_aioquic
[ "$purpose" != test ] || install_linux
[ "$purpose" != test ] || install_mdbook
