#!/bin/bash
# nvme-host.sh REDHARE-BINARY
#
# In a guest with a stock kernel: the network to `redhare target` loses every
# packet for two minutes under a mounted ext4 with verifying I/O; meanwhile, on
# another link, a namespace is removed under load and comes back, one grows, one
# moves to another ANA group, and a controller is reset, each under verifying
# I/O of random sizes and depths.  The target runs in the guest, too, in a
# network namespace of its own.  The steps are in guest-nvme-host.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 600; a busy machine took 204).
# CUT_SECONDS is how long the network is cut at least (default 120).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
mkfs.ext4 e2fsprogs
python3 python3
ip iproute2
tc iproute2
LIST
program "$1"

in_guest -t "${LIMIT_SECONDS:-600}" -m 1536 -c 2 -- PROGRAM="$binary" CUT_SECONDS="${CUT_SECONDS:-120}"
