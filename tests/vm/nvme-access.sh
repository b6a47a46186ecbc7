#!/bin/bash
# nvme-access.sh REDHARE-BINARY
#
# In a guest with a stock kernel, native multipath keeps a mounted ext4 and fio
# going while the ANA states of `redhare target`'s two listeners are swapped by
# management calls.  Then two processes serve one subsystem over one device, and either
# is killed under a mounted ext4 and fio.  The targets run in the guest, too.  The
# steps are in guest-nvme-access.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 600; a busy machine took 210).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
fio fio
mkfs.ext4 e2fsprogs
python3 python3
ss iproute2
LIST
program "$1"

in_guest -t "${LIMIT_SECONDS:-600}" -m 1536 -c 2 -- PROGRAM="$binary"
