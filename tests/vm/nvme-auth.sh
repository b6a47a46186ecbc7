#!/bin/bash
# nvme-auth.sh REDHARE-BINARY
#
# A stock kernel in a guest authenticates with DH-HMAC-CHAP to `redhare target`
# on this machine's loopback, one way and both, with several hash functions and
# Diffie-Hellman groups, and is refused with wrong secrets and without.  Then
# the program runs in the guest and authenticates to the kernel's own target.
# The steps are in guest-nvme-auth.  The secrets come from nvme gen-dhchap-key.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 600; a quiet machine needs about 40).
set -euo pipefail

. "$(dirname "$(readlink -f "$0")")/script-lib"

nqn=nqn.2026-11.io.redhare:vm-auth
one_way=nqn.2026-11.io.redhare:one-way
both_ways=nqn.2026-11.io.redhare:both-ways
# One target each: what it lets hosts authenticate with.
policies=("sha256 null" "sha512 ffdhe2048" "sha384 ffdhe3072")

[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
ss iproute2
LIST
program "$1"

work=$(mktemp -d "${TMPDIR:-/tmp}/redhare-vm-auth.XXXXXX")
targets=()
finish() {
    local target
    for target in "${targets[@]}"; do
        kill "$target" 2> /dev/null || true
        wait "$target" 2> /dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Not bound to a name, and bound to the subsystem's with SHA-384.
(
    umask 077
    nvme gen-dhchap-key --key-length=32 --hmac=0 > "$work/host-secret"
    nvme gen-dhchap-key --key-length=48 --hmac=2 --nqn="$nqn" > "$work/controller-secret"
    nvme gen-dhchap-key --key-length=32 --hmac=0 > "$work/wrong-secret"
)

start_target() { # NAME PORT HASH GROUP
    cat > "$work/$1.json" <<JSON
{"subsystems": [{"subsystem": "keyring", "config": [
  {"method": "keyring_file_add_key", "params": {"name": "host", "path": "$work/host-secret"}},
  {"method": "keyring_file_add_key", "params": {"name": "controller", "path": "$work/controller-secret"}}
]}, {"subsystem": "bdev", "config": [
  {"method": "bdev_malloc_create", "params": {"name": "Malloc0", "num_blocks": 4096, "block_size": 4096}}
]}, {"subsystem": "nvmf", "config": [
  {"method": "nvmf_set_config", "params": {"dhchap_digests": ["$3"], "dhchap_dhgroups": ["$4"]}},
  {"method": "nvmf_create_transport", "params": {"trtype": "TCP", "max_queue_depth": 128}},
  {"method": "nvmf_create_subsystem", "params": {"nqn": "$nqn"}},
  {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "$nqn", "namespace": {"bdev_name": "Malloc0"}}},
  {"method": "nvmf_subsystem_add_host",
   "params": {"nqn": "$nqn", "host": "$one_way", "dhchap_key": "host"}},
  {"method": "nvmf_subsystem_add_host",
   "params": {"nqn": "$nqn", "host": "$both_ways", "dhchap_key": "host", "dhchap_ctrlr_key": "controller"}},
  {"method": "nvmf_subsystem_add_listener",
   "params": {"nqn": "$nqn", "listen_address": {"trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "$2"}}}
]}]}
JSON
    exec "$binary" target --json-config "$work/$1.json" --rpc-socket "$work/$1.sock"
}

described=
for policy in "${policies[@]}"; do
    read -r hash group <<< "$policy"
    port=$(free_port)
    start_target "$group" "$port" "$hash" "$group" > "$work/$group.log" 2>&1 &
    targets+=($!)
    listens "$port" "${targets[-1]}" "$work/$group.log"
    described="$described $port/$hash/$group"
done

status=0
in_guest -t "${LIMIT_SECONDS:-600}" -m 1024 -c 2 --file "$work/host-secret" --file "$work/controller-secret" \
    --file "$work/wrong-secret" -- TARGETS="$described" SUBSYSTEM="$nqn" ONE_WAY="$one_way" BOTH_WAYS="$both_ways" \
    PROGRAM="$binary" || status=$?
for policy in "${policies[@]}"; do
    log=$work/${policy#* }.log
    if [ "$status" = 0 ] && ! { grep -q "host authenticated" "$log" && grep -q "authentication failed" "$log"; }; then
        echo "nvme-auth: the target's log does not say who was let in and who was not" >&2
        status=1
    fi
    if grep -q DHHC "$log"; then
        echo "nvme-auth: a secret is in the target's log" >&2
        status=1
    fi
    if [ "$status" != 0 ]; then
        echo "--- the target's last output (${policy})" >&2
        tail -n 30 "$log" >&2
    fi
done
exit "$status"
