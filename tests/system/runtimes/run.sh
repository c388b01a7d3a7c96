#!/usr/bin/env bash
# The real suite: crictl and a kubelet drive real containerds (2.x with runc and gVisor, Debian's 1.6 with crun) and
# CRI-O through the real criswitch. Runs as root on Debian 12 with Rust and Go. It installs or builds everything else, and
# keeps build results in ${CRISWITCH_CACHE:-~/.cache/criswitch}.
#
#   tests/system/runtimes/run.sh [BATS-ARGUMENT...]   run the checks; the last line is `N passed, N failed`
#                                                    CRISWITCH_KILLS, CRISWITCH_SEED, CRISWITCH_AWAY_S and
#                                                    CRISWITCH_HANG_S: see 80-faults.bats and 96-cluster.bats. With
#                                                    CRISWITCH_NIGHTLY=1 the checks also use second versions
#                                                    of some programs: see partners.sh
#   tests/system/runtimes/run.sh --install            install Debian's packages, and nothing else
#   tests/system/runtimes/run.sh --build              build the other programs and the images, and nothing else
#   tests/system/runtimes/run.sh --keep               set everything up, print the crictl commands, stay until Ctrl-C
#
# Processes and mounts are in separate pid and mount namespaces, so they always end with the run. clean_up removes the
# bridges, the cgroups and the temporary folder.
set -u

REAL=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$REAL/../../.." && pwd)
# The folder of the checks. Only the checks of this suite need its runtimes and its load client.
CHECKS=${CHECKS:-$REAL/checks}
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}

# shellcheck source=tests/system/runtimes/partners.sh
. "$REAL/partners.sh"
# shellcheck source=tests/system/runtimes/images.sh
. "$REAL/images.sh"

main() {
  case ${1:-} in
    --install) install_programs; exit ;;
    --build) build_partners && build_images; exit ;;
  esac
  prepare || give_up "not everything could be installed or built"
  # The folder's name is short, because the path of a socket may have at most 107 bytes.
  DIR=$(mktemp -d "${TMPDIR:-/tmp}/c-XXXXXX") || give_up "no temporary folder"
  BRIDGE=csw-${DIR##*-}
  SUBNET_PREFIX=10.$((RANDOM % 50 + 100))
  # The checks of nodes may run at the same time.
  [ "$CHECKS" = "$REAL/checks" ] || SUBNET_PREFIX=10.$((RANDOM % 50 + 150))
  export REAL TOP DIR CHECKS IMAGES CRISWITCH LOAD HELMS BRIDGE SUBNET_PREFIX PATH=$PARTNERS_PATH:$PATH
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  unshare --mount --pid --fork --kill-child --mount-proc "$REAL/inside.sh" "$@" </dev/null &
  SUITE=$!
  wait "$SUITE"
}

prepare() {
  install_programs && build_partners && build_images && build_switch && build_load
}

install_programs() {
  [ "$(id -u)" = 0 ] || { echo "run this suite as root"; return 1; }
  mkdir -p "$CACHE" && install_debian "${DEBIAN_PACKAGES[@]}"
}

# If CRISWITCH is set in the environment, it names the program to test, with the daemon beside it, and nothing is built.
# The checks of nodes need the feature for faults.
build_switch() {
  local features=()
  [ -z "${CRISWITCH:-}" ] || return 0
  [ "$CHECKS" = "$REAL/checks" ] || features=(--features criswitch-ctl/faults)
  echo "building criswitch"
  CRISWITCH=${CARGO_TARGET_DIR:-$TOP/target}/release/criswitch
  (cd "$TOP" && cargo build --quiet --release --locked "${features[@]}")
}

# Builds the load client of the fault checks.
build_load() {
  [ "$CHECKS" = "$REAL/checks" ] || return 0
  LOAD=${CARGO_TARGET_DIR:-$TOP/target}/debug/examples/load
  (cd "$TOP" && cargo build --quiet --locked --example load)
}

# give_up WHY: ends the run. A set-up that fails counts as a failed check.
give_up() {
  printf '%s\n0 passed, 1 failed\n' "$1"
  exit 1
}

clean_up() {
  trap '' INT TERM HUP
  # The namespace's first process dies with its parent, and all other processes die with the first.
  kill -KILL "$SUITE" 2>/dev/null
  wait "$SUITE" 2>/dev/null
  local n end=$((SECONDS + 60))
  while ! remove_cgroups && [ "$SECONDS" -lt "$end" ]; do sleep 0.1; done
  for n in 1 2 3 4 5 6; do ip link delete "$BRIDGE-$n" 2>/dev/null; done
  rm -rf --one-file-system "$DIR"
}

# Succeeds once no cgroup of the suite's pods is left. At first, processes that are ending may still use a cgroup.
remove_cgroups() {
  find /sys/fs/cgroup -depth -path "*${DIR##*/}*" -type d -exec rmdir {} + 2>/dev/null
  [ -z "$(find /sys/fs/cgroup -maxdepth 2 -name "*${DIR##*/}*" 2>/dev/null)" ]
}

main "$@"
