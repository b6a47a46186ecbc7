#!/bin/bash
# nvme-reset.sh REDHARE-BINARY
#
# The third stage of a disk's reset, by the kernel's own driver: in a guest with a
# stock kernel a node keeps its data on two NVMe disks of QEMU's, one of which has
# two controllers.  Requests of each are made to stand above the device until its
# controller was reset through sysfs; what was being written meanwhile is there
# afterwards.  The steps are in guest-nvme-reset.  The requests stand in the node:
# a device that hangs by itself is not what QEMU has.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 300).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/script-lib"
[ $# = 1 ] || usage
needs <<LIST
qemu-system-x86_64 qemu-system-x86
python3 python3
LIST
program "$1"

work=$(mktemp -d "${TMPDIR:-/tmp}/redhare-vm-reset.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
truncate -s 2G "$work/one" "$work/two"
in_guest -t "${LIMIT_SECONDS:-300}" -m 1536 -c 2 --mods nvme \
    --qemu "-drive if=none,id=one,format=raw,file=$work/one -device nvme,serial=one,drive=one" \
    --qemu "-device nvme-subsys,id=both -device nvme,serial=two,subsys=both -device nvme,id=second,serial=two,subsys=both" \
    --qemu "-drive if=none,id=two,format=raw,file=$work/two -device nvme-ns,drive=two,bus=second,nsid=1,shared=on" \
    -- PROGRAM="$binary"
