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
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
python3 python3
LIST
program "$1"

in_guest -t "${LIMIT_SECONDS:-1200}" -m 2048 -c 2 -- PROGRAM="$binary" ROUNDS="${ROUNDS:-5}" \
    SECONDS_EACH="${SECONDS_EACH:-3}"
