#!/usr/bin/env bash
# boot.sh DIR [BINARY]: boots systemd with the shipped units, in separate namespaces and on a separate root. /usr/bin
# has BINARY, and the daemon that is beside BINARY. The booted system sees DIR and, read-only, /usr of the machine. It
# runs until a signal ends this script. Without BINARY the system has no file of criswitch, and packages can be
# installed; changes of files are discarded.
#
#   DIR/etc       /etc/criswitch inside, with BINARY
#   DIR/units     more units and drop-ins
#   DIR/prepare   a script that changes the root, its working directory, before the boot
#   DIR/backends  /run/backends, /home/backends and /tmp/backends inside
#   DIR/pid       the id of process 1, written at the boot
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
SYSTEM=/usr/lib/systemd

main() {
  CGROUP=$(findmnt --noheadings --output TARGET --types cgroup2 | head -n 1)/criswitch-units${DIR//\//-}
  mkdir "$CGROUP"
  trap clean_up EXIT
  trap 'exit 143' TERM INT HUP
  export TOP DIR BINARY SYSTEM
  export -f inside make_root add_binary let_packages_in copy_on_write fill_etc add_criswitch fill_dev
  (
    echo "$BASHPID" >"$CGROUP/cgroup.procs"
    exec unshare --mount --propagation private --pid --fork --kill-child --cgroup --ipc --uts --net bash -euc inside
  ) </dev/null &
  SYSTEM_PID=$!
  until pgrep --parent "$SYSTEM_PID" >"$DIR/pid.new"; do
    kill -0 "$SYSTEM_PID"
    sleep 0.01
  done
  mv "$DIR/pid.new" "$DIR/pid"
  wait "$SYSTEM_PID"
}

# Ends the booted system. All its processes end with their namespace, for which the kernel needs a moment.
clean_up() {
  local end=$((SECONDS + 120))
  trap '' TERM INT HUP
  kill -KILL "$SYSTEM_PID" 2>/dev/null || true
  wait "$SYSTEM_PID" 2>/dev/null || true
  until find "$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || [ "$SECONDS" -ge "$end" ]; do
    sleep 0.01
  done
}

inside() {
  local root=$DIR/root
  make_root "$root"
  fill_etc "$root/etc"
  fill_dev "$root/dev"
  cd "$root"
  [ ! -e "$DIR/prepare" ] || "$DIR/prepare"
  pivot_root . old
  umount --lazy /old
  # Load neither the machine's units nor unit generators.
  local units=/run/systemd/transient:/etc/systemd/system
  [ -n "$BINARY" ] || units=$units:$SYSTEM/system
  exec /usr/bin/env -i PATH=/usr/bin:/usr/sbin container=units SYSTEMD_UNIT_PATH="$units" \
    SYSTEMD_GENERATOR_PATH=/nonexistent "$SYSTEM/systemd" --system --unit=multi-user.target --show-status=no
}

make_root() {
  local root=$1 name
  mkdir -p "$root"
  mount -t tmpfs -o mode=755 root "$root"
  cd "$root"
  mkdir usr etc dev proc sys run tmp var home root old
  for name in bin sbin lib lib64; do
    ln -s "usr/$name" "$name"
  done
  if [ -n "$BINARY" ]; then add_binary; else let_packages_in; fi
  mount -t proc proc proc
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sys sys
  mount -t cgroup2 cgroup sys/fs/cgroup
  mount -t tmpfs -o mode=755 run run
  for name in run home tmp; do
    mkdir "$name/backends"
    mount --bind "$DIR/backends" "$name/backends"
  done
}

add_binary() {
  mkdir -p "$DIR/added/bin"
  cp "$BINARY" "${BINARY}d" "$DIR/added/bin"
  mount -t overlay -o "ro,lowerdir=$DIR/added:/usr" usr usr
}

# Lets dpkg use the machine's packages and their files, without the machine's user accounts. Removes policy-rc.d, with
# which many container images forbid every start of a service.
let_packages_in() {
  copy_on_write usr
  copy_on_write var/lib/dpkg
  mount -t tmpfs -o mode=755 units "usr/${SYSTEM#/usr/}/system"
  rm -f usr/sbin/policy-rc.d var/lib/dpkg/statoverride
}

copy_on_write() {
  local changes=changes/${1//\//-}
  mkdir -p "$1" "$changes/upper" "$changes/work"
  mount -t overlay -o "lowerdir=/$1,upperdir=$changes/upper,workdir=$changes/work" "$changes" "$1"
}

# Copies the shipped units unchanged. Of systemd's own units, copies only targets, because no service of systemd may run
# here.
fill_etc() {
  local etc=$1 units=$1/systemd/system target
  mkdir -p "$units"
  echo "root:x:0:0::/root:/bin/sh" >"$etc/passwd"
  echo "root:x:0:" >"$etc/group"
  cp /etc/ld.so.cache "$etc"
  tr -d - </proc/sys/kernel/random/uuid >"$etc/machine-id"
  for target in basic sysinit sockets multi-user paths slices timers shutdown umount final local-fs; do
    cp "$SYSTEM/system/$target.target" "$units"
  done
  [ -z "$BINARY" ] || add_criswitch "$etc"
  cp -r "$DIR"/units/* "$units"
  systemctl --quiet --root="${etc%/etc}" enable kubelet.service 2>/dev/null
}

add_criswitch() {
  local etc=$1
  mkdir "$etc/criswitch"
  mount --bind "$DIR/etc" "$etc/criswitch"
  cp -r "$TOP"/systemd/* "$etc/systemd/system"
  systemctl --quiet --root="${etc%/etc}" enable criswitch.service 2>/dev/null
}

fill_dev() {
  local dev=$1
  mount -t tmpfs -o mode=755 dev "$dev"
  mknod -m 666 "$dev/null" c 1 3
  mknod -m 666 "$dev/zero" c 1 5
  mknod -m 666 "$dev/full" c 1 7
  mknod -m 666 "$dev/random" c 1 8
  mknod -m 666 "$dev/urandom" c 1 9
  mknod -m 666 "$dev/tty" c 5 0
  # PrivateDevices= creates a copy of this link.
  ln -s pts/ptmx "$dev/ptmx"
}

DIR=$1 BINARY=${2:-}
main
