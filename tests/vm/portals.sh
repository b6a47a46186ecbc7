#!/bin/bash
# portals.sh REDHARE-BINARY
#
# A stock kernel in a guest attaches a replicated volume by two portals of a
# `redhare up` beside it, with native multipath: ext4, fio with verification, and
# the target of the portal in use is killed under that, then the other one's.
# The steps are in guest-portals.
#
# Ends with a "test result:" line.  Exit status: 0 passed, 77 skipped (the
# reason and the remedy on the last line), another: failed.
# LIMIT_SECONDS bounds the guest (default 900).
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

work=$(mktemp -d)
port=$(free_port)
export XDG_STATE_HOME=$work REDHARE_CLUSTER=127.0.0.1:$port
"$binary" up --disk-size 1GiB --port "$port" --data "$work/cluster" > "$work/log" 2>&1 &
up=$!
killer=
end() {
    [ -z "$killer" ] || kill "$killer" 2> /dev/null || true
    kill -INT "$up" 2> /dev/null || true
    wait "$up" 2> /dev/null || true
    rm -rf "$work"
}
trap end EXIT
listens "$port" "$up" "$work/log"
for _ in $(seq 300); do
    [ "$("$binary" status 2> /dev/null | grep -c ' alive ')" -lt 3 ] || break
    kill -0 "$up" || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
"$binary" volume create disk --size 256MiB > /dev/null
"$binary" volume export disk --json > "$work/export"
read -r nqn first second < <(python3 - "$work/export" <<'PYTHON'
import json, sys
export = json.load(open(sys.argv[1]))
print(export["nqn"], *(portal["address"].rsplit(":", 1)[1] for portal in export["portals"]))
PYTHON
)

# Kills who listens at the port that it is told, once all copies are in sync, and says so; a target is started again by its agent.
control=$(free_port)
python3 - "$control" "$binary" <<'PYTHON' &
import os, re, signal, socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    guest, _ = listener.accept()
    with guest, guest.makefile("rw") as line:
        port = int(line.readline())
        while "all copies in sync" not in subprocess.run([sys.argv[2], "status"], capture_output=True, text=True).stdout:
            time.sleep(0.2)
        found = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True).stdout
        process = int(re.search(r"pid=(\d+)", found).group(1))
        os.kill(process, signal.SIGKILL)
        line.write(f"killed {process}\n")
        line.flush()
PYTHON
killer=$!
listens "$control" "$killer" "$work/log"

in_guest -t "${LIMIT_SECONDS:-900}" -m 1024 -c 2 -- NQN="$nqn" FIRST="$first" SECOND="$second" CONTROL="$control"
"$binary" volume show disk
