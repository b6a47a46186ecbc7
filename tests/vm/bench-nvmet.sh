#!/bin/bash
# bench-nvmet.sh REDHARE-BINARY
#
# Measures, in one guest with a stock kernel, `redhare target` and the kernel's
# nvmet-tcp, each with a RAM disk and with a null device, under the same host:
# the kernel's, over the guest's loopback.  4 KiB random reads at depth 1 and 32,
# in alternated rounds.  The steps are in guest-bench-nvmet.  It has no bar and
# is no test: the guest is emulated, so only ratios within it mean anything.
#
# ROUNDS (default 5) and SECONDS_EACH (default 3) say how long to measure.
# Ends with two tables.  Exit status: 0 measured, 77 skipped (the reason and the
# remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 1200).
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
limit=${LIMIT_SECONDS:-1200}

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
[ -x "$binary" ] || { echo "bench-nvmet: no program at $1" >&2; exit 2; }

exec "$here/vm-run" -t "$limit" -m 2048 -c 2 --file "$here/guest-bench-nvmet" -- \
    env PROGRAM="$binary" ROUNDS="${ROUNDS:-5}" SECONDS_EACH="${SECONDS_EACH:-3}" \
    python3 /run/vmrun/files/guest-bench-nvmet
