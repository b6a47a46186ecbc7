//! What mounts at boot: `packaging/mount.redhare` as mount(8) calls it, and the lines of `packaging/redhare-mount@.service`.

use super::*;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(name)
}

/// A shell in a mount namespace of its own, where /sbin has nothing but `mount.redhare`, and /mnt and /var/log
/// nothing at all.
fn in_a_namespace(place: &Path, script: &str, environment: &[(&str, &str)]) {
    let (sbin, mnt, log) = (place.join("sbin"), place.join("mnt"), place.join("log"));
    fs::create_dir_all(&sbin).unwrap();
    fs::create_dir_all(&log).unwrap();
    fs::create_dir_all(&mnt).unwrap();
    fs::copy(packaging("mount.redhare"), sbin.join("mount.redhare")).unwrap();
    fs::set_permissions(sbin.join("mount.redhare"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "set -eu\nmount --bind \"$SBIN\" /sbin\nmount --bind \"$MNT\" /mnt\nmount --bind \"$LOG\" /var/log\ncd /\n{CLEAN}{script}"
    );
    let kind = match rustix::process::getuid().is_root() {
        true => "-m",
        false => "-rm",
    };
    let output = Command::new("unshare")
        .args([kind, "timeout", "-k", "5", "180", "sh", "-c", &script])
        .envs(environment.iter().copied())
        .env("SBIN", sbin)
        .env("MNT", mnt)
        .env("LOG", log)
        .env("REDHARE", REDHARE)
        .env_remove("REDHARE_CLUSTER")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{:?}: {}",
        output.status,
        String::from_utf8_lossy(&said)
    );
}

/// What failed leaves no mount behind.
const CLEAN: &str = "trap 'umount -l /mnt/data 2> /dev/null || true' EXIT\n";

/// By a line of fstab and by hand, with every option; what is written is there for the next, and what cannot be is refused.
const BY_MOUNT: &str = r#"
refused() { # WHAT IT SAYS, COMMAND...
    said=$1; shift
    if "$@" > "$MNT.said" 2>&1; then echo "$*: was not refused"; exit 1; fi
    grep -q -- "$said" "$MNT.said" || { cat "$MNT.said"; exit 1; }
}
mkdir /mnt/data
echo "data /mnt/data redhare cluster=$MASTERS,nofail,_netdev,take_over,threads=3 0 0" > "$MNT.fstab"
mount --fstab "$MNT.fstab" /mnt/data
grep -q ' /mnt/data fuse' /proc/mounts
test -f /var/log/redhare-mnt-data.log
echo content > /mnt/data/file
sync /mnt/data/file
refused "unmount /mnt/data and mount it again" mount --fstab "$MNT.fstab" -o remount,ro /mnt/data
echo more >> /mnt/data/file
umount /mnt/data
mkdir "$MNT.cache"
chmod 700 "$MNT.cache"
reads="cluster=$MASTERS,cache=32MiB,data_cache=0,cache_dir=$MNT.cache,cache_size=16MiB,log=$MNT.log"
# What was written last may be committed a moment after umount has returned.
for round in $(seq 100); do
    mount -t redhare -o "$reads,follow_within=2,keep_changed=60" data /mnt/data
    grep -q more /mnt/data/file && break
    umount /mnt/data
    sleep 0.1
done
[ "$(cat /mnt/data/file)" = "content
more" ]
refused "Read-only" touch /mnt/data/new
umount /mnt/data
mount -t redhare -o "$reads,stay,cores=2,ro" data /mnt/data
[ "$(head -n 1 /mnt/data/file)" = content ]
umount /mnt/data
refused "take_over is for a mount that writes" mount -t redhare -o "cluster=$MASTERS,ro,take_over" data /mnt/data
refused "option 'colour=red' is not known" mount -t redhare -o "cluster=$MASTERS,colour=red" data /mnt/data
refused "no volume" mount -t redhare -o "cluster=$MASTERS" none /mnt/data
"#;

/// The unit's lines as systemd carries them out.
const BY_UNIT: &str = r#"
start() {
    eval "$BEFORE"
    # Its process is the mount's, and no shell's.
    eval "exec $START" &
    served=$!
}
serves() {
    for round in $(seq 600); do
        ! timeout 5 grep -qx content /mnt/data/file 2> /dev/null || return 0
        # Restart=on-failure.
        kill -0 $served 2> /dev/null || start
        sleep 0.1
    done
    return 1
}
export REDHARE_CLUSTER="$MASTERS"
grep -q ' /mnt/data fuse' /proc/mounts && exit 1
start
serves
echo 'of the unit' > /mnt/data/unit
sync /mnt/data/unit
kill -9 $served
# Of a process that was killed systemd runs no ExecStop.
wait $served || true
grep -q ' /mnt/data fuse' /proc/mounts
start
serves
eval "$STOP"
wait $served
if grep -q ' /mnt/data fuse' /proc/mounts; then exit 1; fi
"#;

#[test]
fn mount_and_the_unit_mount_at_boot() {
    if !can_mount("mount_and_the_unit_mount_at_boot") {
        return;
    }
    let place = Place::new("mount-boot");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "data", "--size", "256MiB"]);
    format(Some(&cluster), "data");
    let masters = cluster.address().replace(',', ";");
    in_a_namespace(&place.0, BY_MOUNT, &[("MASTERS", &masters)]);

    let unit = fs::read_to_string(packaging("redhare-mount@.service")).unwrap();
    let line = |key: &str| {
        let found = unit.lines().find_map(|line| line.strip_prefix(key));
        found
            .unwrap_or_else(|| panic!("no {key} in the unit"))
            .replace("%i", "data")
            .replace("/usr/bin/redhare", REDHARE)
    };
    let before = line("ExecStartPre=");
    let environment = [
        ("MASTERS", cluster.address().to_owned()),
        ("OPTIONS", "--threads 3".to_owned()),
        // What begins with a dash may fail.
        (
            "BEFORE",
            before
                .strip_prefix('-')
                .map_or(before.clone(), |may_fail| format!("{may_fail} || true")),
        ),
        ("START", line("ExecStart=")),
        ("STOP", line("ExecStop=")),
    ];
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    in_a_namespace(&place.0, BY_UNIT, &environment);
    assert_eq!(succeed(Some(&cluster), &["cat", "data:unit"]), "of the unit\n");
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let place = Place::new("mount-unit");
    let unit = fs::read_to_string(packaging("redhare-mount@.service")).unwrap();
    let path = place.0.join("redhare-mount@data.service");
    fs::write(&path, unit.replace("/usr/bin/redhare", REDHARE)).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&path).output();
    let Ok(verified) = verified else {
        skip(
            "systemd_finds_nothing_wrong_with_the_unit",
            "there is no systemd-analyze; install systemd",
        );
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    let about = said.lines().filter(|line| line.contains("redhare-mount"));
    assert_eq!(about.collect::<Vec<_>>(), Vec::<&str>::new(), "{said}");
    assert!(verified.status.success(), "{said}");
}
