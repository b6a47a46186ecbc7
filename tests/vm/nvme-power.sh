#!/bin/bash
# nvme-power.sh REDHARE-BINARY
#
# Reservations that persist through loss of power, with a real one: in a guest
# with a stock kernel a host reserves namespaces of `redhare target`, which runs in
# the guest, too, and keeps them in a file on the guest's disk; then the guest is
# cut off (sysrq b: nothing is written any more, no file system unmounted).
# A second guest boots from the same disk and looks.  The steps are in
# guest-nvme-power.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds each guest (default 180; a busy machine took 20).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
nvme nvme-cli
mkfs.ext4 e2fsprogs
LIST
program "$1"

work=$(mktemp -d "${TMPDIR:-/tmp}/redhare-vm-power.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
truncate -s 64M "$work/disk"

boot() { # VARIABLE=VALUE...
    # Each host has a device of its own only without multipath.
    in_guest -t "${LIMIT_SECONDS:-180}" -m 1024 -c 2 --mods virtio_blk --append nvme_core.multipath=N \
        --qemu "-drive if=none,id=disk,format=raw,cache=writeback,file=$work/disk" \
        --qemu "-device virtio-blk-pci,drive=disk" -- PROGRAM="$binary" "$@"
}

# The guest ends before its command does: that is the cut.
status=0
boot PHASE=before > "$work/before" 2>&1 || status=$?
if [ "$status" != 125 ] || ! grep -q "^now the power goes" "$work/before"; then
    cat "$work/before"
    echo "nvme-power: the first guest ended with $status and was not cut off" >&2
    exit 1
fi
grep "^ok" "$work/before"
boot PHASE=after STEPS="$(grep -c "^ok" "$work/before")"
