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
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
python3 python3
LIST
program "$1"

in_guest -t "${LIMIT_SECONDS:-900}" -m 1536 -c 2 -- PROGRAM="$binary"
