#!/bin/bash
# nvme-tls.sh REDHARE-BINARY
#
# A stock kernel in a guest connects over TLS 1.3 with pre-shared keys to
# `redhare target` on this machine's loopback: both suites, both versions of the
# identity, data, a reset, and hosts that are refused.  Then the program runs in
# the guest and connects over TLS to the kernel's own target.  The records are the
# kernel's (kTLS); its handshakes are done by handshake-agent with the system's
# libssl, since Debian 12 has no tlshd.  The steps are in guest-nvme-tls.  The
# keys come from nvme gen-tls-key.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 600; a quiet machine needs about 40).
set -euo pipefail

. "$(dirname "$(readlink -f "$0")")/script-lib"

nqn=nqn.2026-11.io.redhare:vm-tls
host=nqn.2026-11.io.redhare:vm-host

[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
ss iproute2
python3 python3
openssl openssl
LIST
program "$1"

work=$(mktemp -d "${TMPDIR:-/tmp}/redhare-vm-tls.XXXXXX")
target=
finish() {
    if [ -n "$target" ]; then
        kill "$target" 2> /dev/null || true
        wait "$target" 2> /dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

(
    umask 077
    nvme gen-tls-key --hmac=1 > "$work/short-key"
    nvme gen-tls-key --hmac=2 > "$work/long-key"
)

port=$(free_port)
cat > "$work/target.toml" <<TOML
[nvme_tcp]
secure_listen = ["127.0.0.1:$port"]
[[subsystem]]
nqn = "$nqn"
hosts = ["$host-short", "$host-long"]
psk = { "$host-short" = "$work/short-key", "$host-long" = "$work/long-key" }
[[subsystem.namespace]]
nsid = 1
memory = "16MiB"
TOML
"$binary" target --config "$work/target.toml" > "$work/target.log" 2>&1 &
target=$!
listens "$port" "$target" "$work/target.log"

status=0
in_guest -t "${LIMIT_SECONDS:-600}" -m 1024 -c 2 --file "$here/handshake-agent" --file "$work/short-key" \
    --file "$work/long-key" -- PORT="$port" SUBSYSTEM="$nqn" HOST="$host" AGENT=/run/vmrun/files/handshake-agent \
    PROGRAM="$binary" || status=$?
log=$work/target.log
if [ "$status" = 0 ] && ! { grep -q "host connected" "$log" && grep -q "no key that is known" "$log"; }; then
    echo "nvme-tls: the target's log does not say who was let in and who was not" >&2
    status=1
fi
if grep -q NVMeTLSkey "$log"; then
    echo "nvme-tls: a key is in the target's log" >&2
    status=1
fi
if [ "$status" != 0 ]; then
    echo "--- the target's last output" >&2
    tail -n 30 "$log" >&2
fi
exit "$status"
