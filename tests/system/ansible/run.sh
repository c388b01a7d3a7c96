#!/usr/bin/env bash
# Tests the Ansible role: on the mounted image of a node it installs criswitch once, changes nothing in a second run or
# with --check, reports a rejected plan, and takes everything back. Runs as root on Debian 12. $CRISWITCH names the
# program, beside which criswitchd is.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
IMAGE=$WORK/image
export ANSIBLE_ROLES_PATH=$TOP/deploy/ansible ANSIBLE_HOME=$WORK/ansible ANSIBLE_LOCALHOST_WARNING=false

# shellcheck source=tests/system/node/image.bash
. "$TOP/tests/system/node/image.bash"

main() {
  mkdir -p "$CACHE"
  command -v ansible-playbook >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends ansible-core
  } >"$CACHE/apt-ansible.log" 2>&1
  make_image "$IMAGE"
  files >"$WORK/before"
  play "ok=5 changed=1 failed=0" installed "$OF_IMAGE" --check
  files | cmp - "$WORK/before"
  play "ok=6 changed=1 failed=0" installed "$OF_IMAGE"
  "$CRISWITCH" node status --root "$IMAGE" --ready >/dev/null
  files >"$WORK/installed"
  play "ok=6 changed=0 failed=0" installed "$OF_IMAGE"
  play "ok=5 changed=0 failed=0" installed "$OF_IMAGE" --check
  files | cmp - "$WORK/installed"
  play "ok=5 changed=1 failed=0" uninstalled "$OF_IMAGE" --check
  files | cmp - "$WORK/installed"
  play "ok=6 changed=1 failed=0" uninstalled "$OF_IMAGE"
  files | cmp - "$WORK/before"
  play "ok=5 changed=0 failed=0" uninstalled "$OF_IMAGE"
  play "ok=5 changed=0 failed=1" installed ""
  grep -Eq 'state[\\"]+: [\\"]+rejected' "$WORK/output"
  play "ok=4 changed=0 failed=1" installed "" --check
  files | cmp - "$WORK/before"
  echo "ansible: 9 plays passed, with $(ansible-playbook --version | sed -n 1p)"
}

# files: prints each file of the image with its content.
files() {
  (cd "$IMAGE" && find . -type f -not -path './var/lib/criswitch/*' -exec sha256sum {} + | sort -k 2)
}

# play RECAP STATE ACCEPTED [ARGUMENT...]: runs the role for this state and with these accepted findings, and compares the
# numbers of its tasks.
play() {
  local recap
  jq -n --arg state "$2" --arg specification "$(specification "$3")" --arg programs "$(dirname "$CRISWITCH")" \
    --arg root "$IMAGE" --arg folder "$WORK/programs" '[{hosts: "all", gather_facts: false, roles: ["criswitch"], vars: {
    criswitch_state: $state, criswitch_specification: $specification, criswitch_programs: $programs,
    criswitch_root: $root, criswitch_folder: $folder}}]' >"$WORK/play.json"
  ansible-playbook --inventory node, --connection local "$WORK/play.json" "${@:4}" >"$WORK/output" 2>&1 || true
  recap=$(sed -n 's/^node .*: \(ok=[0-9]*\) *\(changed=[0-9]*\) .* \(failed=[0-9]*\) .*/\1 \2 \3/p' "$WORK/output")
  [ "$recap" = "$1" ] || { echo "expected $1, not $recap:"; cat "$WORK/output"; return 1; }
}

main
