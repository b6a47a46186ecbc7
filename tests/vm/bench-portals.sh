#!/bin/bash
# bench-portals.sh REDHARE-BINARY
#
# Measures how long the I/O of a stock kernel's multipath host pauses when the
# portal in use fails: its target's process is killed, or its host hangs
# (SIGSTOP of the target and its agent for HANG seconds).  The kernel is in a
# guest, the cluster (`redhare up`) beside it.  The steps are in
# guest-bench-portals.  `redhare bench faults portals` runs this.
#
# ROUNDS (default 3) of each; KEEP_ALIVE (default 5) is the host's keep-alive
# time in seconds.  Prints a line "pause KIND: read SECONDS write SECONDS" for
# each fault, and one "calm: ..." for as long without any.  Exit status: 0
# measured, 77 skipped (the reason and the remedy on the last line), another:
# failed.  LIMIT_SECONDS bounds the guest (default 1200).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
. "$here/portals-lib"
[ $# = 1 ] || usage
portals_need
program "$1"
export_volume
control_portals

keep_alive=${KEEP_ALIVE:-5}
in_guest -t "${LIMIT_SECONDS:-1200}" -m 1024 -c 2 -- NQN="$nqn" FIRST="$first" SECOND="$second" CONTROL="$control" \
    ROUNDS="${ROUNDS:-3}" KEEP_ALIVE="$keep_alive" HANG="${HANG:-$((keep_alive * 3 + 5))}"
