#!/bin/bash
# portals.sh REDHARE-BINARY
#
# A stock kernel in a guest attaches a replicated volume by two portals of a
# `redhare up` beside it, with native multipath: what it discards (blkdiscard,
# fstrim) comes back to the nodes; ext4, fio with verification, and the target of
# the portal in use is killed under that, then the other one's; and the volume grows
# under ext4, which grows with it.
# The steps are in guest-portals.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 900).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
. "$here/portals-lib"
[ $# = 1 ] || usage
portals_need "fio fio
mkfs.ext4 e2fsprogs
blkdiscard util-linux
fstrim util-linux
resize2fs e2fsprogs"
program "$1"
export_volume
control_portals

in_guest -t "${LIMIT_SECONDS:-900}" -m 1024 -c 2 -- NQN="$nqn" FIRST="$first" SECOND="$second" CONTROL="$control"
"$binary" volume show disk
