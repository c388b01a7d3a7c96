#!/usr/bin/env bash
# Compiles deploy/selinux/criswitch.cil with secilc, and looks up the label of each program that a unit on a node runs. No
# system in enforcing mode is started. Runs as root on Debian 12. $CRISWITCH names the program, beside which criswitchd is.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# shellcheck source=tests/system/node/image.bash
. "$TOP/tests/system/node/image.bash"

main() {
  mkdir -p "$CACHE"
  command -v secilc selabel_lookup >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends secilc selinux-utils
  } >"$CACHE/apt-selinux.log" 2>&1
  secilc --output "$WORK/policy" --filecontext "$WORK/labels" "$TOP/tests/system/selinux/base.cil" \
    "$TOP/deploy/selinux/criswitch.cil"
  local path paths
  mapfile -t paths < <(programs)
  [ "${#paths[@]}" -ge 4 ] || { echo "too few programs: ${paths[*]}"; return 1; }
  for path in "${paths[@]}"; do
    expect bin_t "$path"
  done
  expect var_lib_t /var/lib/criswitch/runc.backend
  expect usr_t /opt/criswitch-other/program
  echo "selinux: ${#paths[@]} programs have the label bin_t: ${paths[*]}"
}

# programs: prints the programs of the units of a package and of `node apply`, and those that `node apply` and `node
# follow` have systemd run.
programs() {
  make_image "$WORK/image"
  specification "$OF_IMAGE" >"$WORK/spec.toml"
  "$CRISWITCH" node apply --root "$WORK/image" --spec "$WORK/spec.toml" >&2
  {
    sed -n 's/^Exec[A-Za-z]*=\(\/[^ ]*\).*/\1/p' "$TOP"/systemd/*.service \
      "$WORK"/image/etc/systemd/system/criswitch*.service
    sed -n 's/^const [A-Z_]*: &str = "\(\/var\/lib\/criswitch\/node\/criswitchd\{0,1\}\)";$/\1/p' \
      "$TOP"/crates/node/src/follow.rs
  } | sort -u
}

# expect TYPE PATH: checks the type in the label of a path.
expect() {
  local label
  label=$(selabel_lookup -b file -f "$WORK/labels" -k "$2")
  [[ $label == *":$1:"* ]] || { echo "$2 has not the type $1: $label"; return 1; }
}

main
