#!/bin/bash
# nvme-tcp-ext4.sh REDHARE-BINARY | --against-kernel
#
# A stock kernel in a guest discovers `redhare target` on this machine's
# loopback, makes ext4, copies a tree, reconnects and compares; then queues,
# digests, fio with verification, the admin commands of nvme-cli, and
# reservations of two hosts.  The steps
# are in guest-nvme-tcp-ext4.  --against-kernel runs the same steps against the
# kernel's own target inside the guest, and proves that they can fail.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 900; a quiet machine needs about 60),
# FILES is how many files to copy (default 2000), FIO_SECONDS how long fio runs.
# MANAGED=1: the target is made by the calls of a saved configuration, and can be
# looked at meanwhile with tests/spdk-rpc; without, by a configuration file.
set -euo pipefail

. "$(dirname "$(readlink -f "$0")")/script-lib"

# The only lines that know how a target is configured and started.
start_target() { # BINARY PORT DIRECTORY
    if [ "${MANAGED-}" = 1 ]; then
        local nqn='"nqn": "nqn.2026-11.io.redhare:vm-test"'
        cat > "$3/target.json" <<JSON
{"subsystems": [{"subsystem": "bdev", "config": [
  {"method": "bdev_malloc_create", "params": {"name": "Malloc0", "num_blocks": 65536, "block_size": 4096}}
]}, {"subsystem": "nvmf", "config": [
  {"method": "nvmf_create_transport",
   "params": {"trtype": "TCP", "max_queue_depth": 128, "max_io_qpairs_per_ctrlr": 4}},
  {"method": "nvmf_create_subsystem", "params": {$nqn, "allow_any_host": true, "ana_reporting": true}},
  {"method": "nvmf_subsystem_add_ns", "params": {$nqn, "namespace": {"bdev_name": "Malloc0", "ptpl_file": "$3/reservations"}}},
  {"method": "nvmf_subsystem_add_listener",
   "params": {$nqn, "listen_address": {"trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "$2"}}}
]}]}
JSON
        exec "$1" target --json-config "$3/target.json" --rpc-socket "$3/rpc.sock"
    fi
    cat > "$3/target.toml" <<TOML
[nvme_tcp]
listen = ["127.0.0.1:$2"]

[[subsystem]]
nqn = "nqn.2026-11.io.redhare:vm-test"

[[subsystem.namespace]]
nsid = 1
memory = "256MiB"
TOML
    exec "$1" target --config "$3/target.toml"
}

[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
mkfs.ext4 e2fsprogs
ss iproute2
LIST

work=$(mktemp -d "${TMPDIR:-/tmp}/redhare-vm-test.XXXXXX")
target=
finish() {
    [ -z "$target" ] || { kill "$target" 2> /dev/null || true; wait "$target" 2> /dev/null || true; }
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# The files to copy, with their checksums as read outside the guest.  Names with
# blanks or worse are left out; the list is the same on every run.
choose_files() {
    local directories=() directory
    for directory in /usr/share/doc /usr/share/perl /usr/share/zoneinfo /usr/include /usr/share/misc; do
        [ ! -d "$directory" ] || directories+=("${directory#/}")
    done
    cd /
    find "${directories[@]}" -xdev -type f -readable -size -129k -regex '[-_.+a-zA-Z0-9/]*' | LC_ALL=C sort |
        awk -v limit="${FILES:-2000}" 'NR <= limit' | xargs sha256sum > "$work/sums"
    [ "$(wc -l < "$work/sums")" -ge 100 ] ||
        { echo "nvme-tcp-ext4: fewer than 100 files below /usr/share to copy" >&2; exit 1; }
}

run_guest() { # VARIABLE=VALUE...
    in_guest -t "${LIMIT_SECONDS:-900}" -m 2048 -c 2 --file "$work/sums" -- "$@" FIO_SECONDS="${FIO_SECONDS:-5}"
}

(choose_files)
if [ "$1" = --against-kernel ]; then
    run_guest ADDRESS=127.0.0.1 PORT=4420 SELF_TEST=1
    exit
fi

program "$1"
port=$(free_port)
start_target "$binary" "$port" "$work" > "$work/target.log" 2>&1 &
target=$!
listens "$port" "$target" "$work/target.log"

status=0
run_guest ADDRESS=10.0.2.2 PORT="$port" || status=$?
if ! kill -0 "$target" 2> /dev/null; then
    echo "nvme-tcp-ext4: the target ended during the test" >&2
    status=1
fi
if [ "$status" != 0 ]; then
    echo "--- the target's last output" >&2
    tail -n 60 "$work/target.log" >&2
fi
exit "$status"
