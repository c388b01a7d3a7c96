# An A/B upgrade of a containerd with two handlers, with the commands of docs/live-change.md: new pods go to the new version,
# back to the old one and again to the new one, and no container restarts. The checks are the steps, from first to last.

load helpers.bash
load faults.bash
load live.bash

setup_file() {
  rm -rf "$LIVE" "$DIR/live.sock.state"
  mkdir -p "$LIVE/conf.d"
  # The handler crun of containerd 5, as containerd 1 has it.
  render oci-runtime.sh "$DIR/crun-5" "RUNTIME=$(command -v crun)"
  chmod +x "$DIR/crun-5"
  configure_containerd 5
  cat >>"$DIR/containerd-5.toml" <<CRUN

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
options = { BinaryName = "$DIR/crun-5", Root = "$DIR/containerd-5/crun", SystemdCgroup = false }
CRUN
  launch_containerd 5
  for n in 1 5; do
    crictl_at "$n" pull "$BUSYBOX" >/dev/null
  done
}

setup() {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=live
}

teardown_file() {
  end_remaining TERM live
  crictl_at 5 rmp -af >/dev/null 2>&1 || true
  end_remaining TERM containerd-5
  remove_pods
}

# criswitch ARGUMENT...: the command as the page writes it, for the criswitch `live`.
criswitch() {
  "$CRISWITCH" "$@" --config "$LIVE/criswitch.toml" 2>&1
}

# commands STEP [back]: prints the commands of a step of the page, or of its way back, with the paths of the checks.
commands() {
  local found
  found=$(awk -v step="### $1. " -v back="${2:-}" '/^##/ {on = index($0, step) == 1; part = ""}
    /^\*Back:\*/ {part = "back"} on && part == back && /^    \$ / {print substr($0, 7)}' "$TOP/docs/live-change.md" |
    grep -v 'criswitch status' | sed -e "s|/etc/criswitch|$LIVE|g")
  [ -n "$found" ] || fail "the page has no commands for step $1 ${2:-}" || return
  echo "$found"
}

# take STEP [back]: runs the commands of a step, or of its way back, and prints their output.
take() {
  local found
  found=$(commands "$@") && eval "$found"
}

# begins NAME HANDLER N: creates a pod of the handler, which containerd N must run, and keeps how it started.
begins() {
  begin_service live "$1" "$2"
  has "pods of containerd $3" "$(kept "pod.$1")" "$(pods_at "$3")"
  start_of "$1" | keep_as "started.$1"
}

# start_of NAME: prints the id, the process and the start of the container.
start_of() {
  live inspect "$(kept "main.$1")" | jq -c '[.status.id, .info.pid, .status.startedAt]'
}

# undisturbed_pods NAME...: checks that exactly these pods exist, and that no container has restarted.
undisturbed_pods() {
  local name
  equal "pods" "$(for name in "$@"; do kept "pod.$name"; done | sort)" "$(live pods -q --no-trunc | sort)"
  for name in "$@"; do
    equal "$name: its start" "$(kept "started.$name")" "$(start_of "$name")"
    equal "$name: exec" hi "$(live exec -s "$(kept "main.$name")" echo hi)"
  done
}

@test "discover writes a row for each handler of the old version, and a drop-in adds the new version" {
  "$CRISWITCH" discover --listen "$DIR/live.sock" --write "$LIVE/criswitch.toml" "$DIR/containerd-1.sock"
  # discover names a backend after its socket.
  sed -i 's/"containerd-1"/"containerd"/; s/^containerd-1 *=/containerd =/' "$LIVE/criswitch.toml"
  start_live
  begins first runc 1
  begins second crun 1
  write conf.d/10-new.toml <<<"[handlers]
trial = { backend = \"new\", handler = \"runc\" }
[backends]
new = \"$DIR/containerd-5.sock\""
  equal "what reload prints" $'handler added: trial\nbackend added: new' "$(criswitch reload)"
  wait_for 60 "the new backend" is_backend new ready
  undisturbed_pods first second
}

MOVED='handler moved: crun from containerd to new
handler moved: runc from containerd to new
backend retiring: containerd, which owns 2 pods and 2 containers'

@test "step 5 sends new pods of every handler to the new version, its way back to the old one, and step 5 again to the new one" {
  equal "what step 5 prints" "$MOVED" "$(take 5)"
  wait_for 60 "the new backend" is_backend new ready
  begins third runc 5
  begins fourth crun 5
  undisturbed_pods first second third fourth
  has "the way back" $'handler moved: crun from new to containerd\nhandler moved: runc from new to containerd' "$(take 5 back)"
  begins fifth crun 1
  undisturbed_pods first second third fourth fifth
  has "what step 5 prints" $'handler moved: crun from containerd to new\nhandler moved: runc from containerd to new' "$(take 5)"
  begins sixth runc 5
  undisturbed_pods first second third fourth fifth sixth
}

@test "step 7 removes the old version once it has no pod" {
  for name in first second fifth; do
    live rmp -f "$(kept "pod.$name")" >/dev/null
  done
  equal "pods of the old version" "" "$(pods_at 1)"
  equal "what step 7 prints" "backend removed: containerd" "$(take 7)"
  undisturbed_pods third fourth sixth
}
