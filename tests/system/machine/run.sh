#!/usr/bin/env bash
# Tests the Debian package of criswitch on a whole machine in QEMU, with its own kernel, cgroup v2 and the systemd cgroup
# driver: boots, restarts, power cuts. The nightly lane of tests/run.sh runs it: it takes about 13 minutes for the part
# `package` and 7 for the part `node`, and 3 more for each power cut. Runs as root on Debian 12 with Rust and Go.
#
#   tests/system/machine/run.sh [--cuts N] [PART...]
#
#   --cuts N   cut the power N times in each part; 3 by default, 20 before a release. CRISWITCH_SEED repeats the
#              moments
#   PART       `package`: boots with the package, a late runtime, power cuts while pods come and go
#              `node`: `criswitch node apply` changes a node with a kubelet, the node boots, and power cuts while
#              `criswitch node` changes it or takes that back
#              Both by default
#
# CRISWITCH_DEB names the Debian package; by default it is the one of the step `package` of tests/run.sh. The programs and
# images are those of tests/system/runtimes/run.sh; they and the disk are kept in ${CRISWITCH_CACHE:-~/.cache/criswitch}.
set -u

MACHINE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TESTS=$(dirname "$MACHINE")
REAL=$TESTS/runtimes
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
CUTS=3
# How long a boot with its checks may take, in seconds.
LIMIT_S=1500
PASSED=0 FAILED=0 QEMU=

# shellcheck source=tests/system/runtimes/partners.sh
. "$REAL/partners.sh"
# shellcheck source=tests/system/runtimes/images.sh
. "$REAL/images.sh"
# shellcheck source=tests/system/runtimes/setup.sh
. "$REAL/setup.sh"
# shellcheck source=tests/system/machine/image.bash
. "$MACHINE/image.bash"

main() {
  local part parts=()
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
      --cuts) CUTS=$2; shift ;;
      package | node) parts+=("$1") ;;
      *) give_up "unknown argument $1; --help shows the arguments" ;;
    esac
    shift
  done
  [ ${#parts[@]} -gt 0 ] || parts=(package node)
  RANDOM=${CRISWITCH_SEED:=$RANDOM}
  prepare || give_up "not everything could be installed or built"
  say "$(basename "$DEB"); CRISWITCH_SEED=$CRISWITCH_SEED"
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  for part in "${parts[@]}"; do
    say "part $part"
    if ! new_disk || ! "test_$part"; then
      say "part $part ended early"
      FAILED=$((FAILED + 1))
    fi
    end_machine
  done
  echo "$PASSED passed, $FAILED failed, $SECONDS s"
  [ "$FAILED" = 0 ]
}

prepare() {
  [ "$(id -u)" = 0 ] || { echo "run these tests as root"; return 1; }
  DEB=${CRISWITCH_DEB:-$(find "$CACHE/package/one" -name 'criswitch_*_amd64.deb' 2>/dev/null)}
  [ -f "$DEB" ] || { echo "no Debian package '$DEB'; tests/run.sh package makes it, or CRISWITCH_DEB names one"; return 1; }
  mkdir -p "$CACHE/machine" &&
    install_debian "${DEBIAN_PACKAGES[@]}" qemu-system-x86:/usr/bin/qemu-system-x86_64 mmdebstrap:/usr/bin/mmdebstrap \
      e2fsprogs:/sbin/mke2fs && build_partners && build_images && build_image &&
    DIR=$(mktemp -d "${TMPDIR:-/tmp}/criswitch-machine-XXXXXX")
}

# Tests the package on a machine with runtimes and without a kubelet, because a kubelet would remove crictl's pods.
test_package() {
  local cut
  check 10-package boot && check 20-boot order restart && check 30-late order restart || return
  for ((cut = 1; cut <= CUTS; cut++)); do
    : >"$DIR/share/pods"
    order churn && wait_for 300 "the first pod" test -s "$DIR/share/pods" && cut_power "$cut" 60 pods && check 40-cut boot ||
      return
  done
}

# Tests a node with a kubelet and without the package. Every second power cut is during an apply.
test_node() {
  local cut change changes=("apply --spec /root/spec.toml" undo "apply --spec /root/spec.toml" uninstall)
  check 50-node boot && check 60-installed order restart || return
  cp "$DIR/share/seconds-"{uninstall,undo}
  echo "${changes[0]}" >"$DIR/share/change"
  for ((cut = 1; cut <= CUTS; cut++)); do
    rm -f "$DIR/share/changed"
    change=$(<"$DIR/share/change")
    order change && wait_for 300 "the start of the change" test -e "$DIR/share/changed" &&
      cut_power "$cut" "$(($(<"$DIR/share/seconds-${change%% *}") * 11 / 10))" "${change%% *}" || return
    echo "${changes[cut % 4]}" >"$DIR/share/change"
    check 70-cut boot || return
  done
}

# new_disk: makes a disk and the folder that the machine shares.
new_disk() {
  rm -rf "$DIR/disk" "$DIR/share" && mkdir -p "$DIR/share/node" && cp --sparse=always "$IMAGE/disk" "$DIR/disk" &&
    cp -r "$MACHINE" "$REAL" "$DIR/share/" && cp "$TESTS"/node/* "$DIR/share/node/" && cp "$DEB" "$DIR/share/criswitch.deb"
}

# boot: starts the machine. KVM of some machines cannot run this kernel, so the processor is emulated.
boot() {
  qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 2G -nodefaults -nographic \
    -kernel "$IMAGE/kernel" -initrd "$IMAGE/initrd" -append "root=/dev/vda rw console=ttyS0 mitigations=off quiet" \
    -drive "file=$DIR/disk,if=virtio,format=raw" -netdev user,id=net,restrict=on -device virtio-net,netdev=net \
    -virtfs "local,path=$DIR/share,mount_tag=share,security_model=none" -serial "file:$DIR/serial" >"$DIR/qemu" 2>&1 &
  QEMU=$!
}

# check NAME COMMAND...: boots with the command, runs the checks of the file NAME.bats in the machine, and prints each
# result as soon as it exists.
check() {
  local began=$SECONDS lines=0
  rm -f "$DIR/share/"{tap,status,order}
  echo "$1" >"$DIR/share/checks"
  say "boot for $1"
  "${@:2}" || return
  until [ -s "$DIR/share/status" ]; do
    if ! is_running || [ $((SECONDS - began)) -gt "$LIMIT_S" ]; then
      show_end
      return 1
    fi
    lines=$(show_results "$lines")
    sleep 1
  done
  show_results "$lines" >/dev/null
  PASSED=$((PASSED + $(grep -c '^ok ' "$DIR/share/tap")))
  FAILED=$((FAILED + $(grep -c '^not ok ' "$DIR/share/tap")))
  say "$1 took $((SECONDS - began)) s with the boot"
  # A file that ended early has fewer results than it planned.
  [ "$(grep -cE '^(not )?ok ' "$DIR/share/tap")" = "$(sed -n 's/^1\.\.//p' "$DIR/share/tap")" ]
}

# show_results LINES: prints the results after the first LINES lines to standard error, and the number of lines to
# standard output.
show_results() {
  local line count=$1
  while read -r line; do
    count=$((count + 1))
    say "  $line" >&2
  done < <(tail -n "+$(($1 + 1))" "$DIR/share/tap" 2>/dev/null)
  echo "$count"
}

# order NAME: makes the machine run a function of guest.bash after its checks.
order() {
  rm -f "$DIR/share/order"
  echo "$1" >"$DIR/share/order"
}

# cut_power CUT SECONDS WHAT: kills the machine at a random moment in this time.
cut_power() {
  local after=$((RANDOM % ($2 * 10)))
  say "power cut $1 of $CUTS, after $((after / 10)).$((after % 10)) s of $3"
  sleep "$((after / 10)).$((after % 10))"
  end_machine
}

end_machine() {
  [ -n "$QEMU" ] || return 0
  kill -KILL "$QEMU" 2>/dev/null
  wait "$QEMU" 2>/dev/null
  QEMU=
}

is_running() {
  kill -0 "$QEMU" 2>/dev/null
}

show_end() {
  say "the machine does not go on"
  tail -n 15 "$DIR/qemu" "$DIR/serial" "$DIR/share/log" 2>/dev/null | cut -c1-200
}

# say TEXT...: prints a line with the time since the start.
say() {
  printf '%5d s  %s\n' "$SECONDS" "$*"
}

# give_up WHY: ends the run. A set-up that fails counts as a failed check.
give_up() {
  printf '%s\n0 passed, 1 failed\n' "$1"
  exit 1
}

clean_up() {
  end_machine
  rm -rf "$DIR"
}

main "$@"
