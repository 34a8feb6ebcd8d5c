#!/bin/sh
# Runs a grid in shards by GNU parallel, on this machine or, with --sshloginfile, on others that
# have the same program and folder. A worker that is killed is started again, up to three times.
#
#   jobs/parallel.sh GRID OUT SHARDS [options of parallel]
#   jobs/parallel.sh sweeps/io-tcp.toml /tmp/io-tcp 8 --jobs 4
#   outboard-lab sweep sweeps/io-tcp.toml --merge /tmp/io-tcp
set -eu

[ $# -ge 3 ] || {
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
grid=$1 out=$2 shards=$3
shift 3
command -v parallel >/dev/null || {
    echo "$0: no GNU parallel; on Debian: apt-get install parallel" >&2
    exit 69
}
# The program quotes its arguments for the shell that it runs them with.
seq "$shards" | parallel --retries 3 --line-buffer --tagstring 'shard {}' "$@" --quote \
    "${OUTBOARD_LAB:-outboard-lab}" sweep "$grid" --out "$out" --shard "{}/$shards"
