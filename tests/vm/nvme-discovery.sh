#!/bin/bash
# nvme-discovery.sh REDHARE-BINARY
#
# In a guest with a stock kernel: nvme-cli follows the discovery log of
# `redhare target` over IPv4, IPv6 and a referral, the kernel keeps persistent
# discovery controllers, is told of each change, and what udev's rule would do
# then connects what is new.  The target runs in the guest, too.  The steps are
# in guest-nvme-discovery.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 900; a busy machine took 250).
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
limit=${LIMIT_SECONDS:-900}

usage() { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
skip() { echo "SKIP: $*"; exit 77; }
[ $# = 1 ] || usage
export PATH=$PATH:/usr/sbin:/sbin
while read -r tool package; do
    command -v "$tool" > /dev/null || skip "no command '$tool': apt-get install $package"
done <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
python3 python3
LIST
"$here/vm-kernel" || { [ $? = 69 ] && skip "no guest kernel (see above)"; exit 1; }
binary=$(readlink -f "$1")
[ -x "$binary" ] || { echo "nvme-discovery: no program at $1" >&2; exit 2; }

exec "$here/vm-run" -t "$limit" -m 1536 -c 2 --file "$here/guest-lib" --file "$here/guest-nvme-discovery" -- \
    env PROGRAM="$binary" bash /run/vmrun/files/guest-nvme-discovery
