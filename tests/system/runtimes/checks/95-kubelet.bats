# A real kubelet moves from one containerd to another with criswitch, while both containerds fail and criswitch is
# killed. No container is restarted. The checks are the steps, from first to last.

load helpers.bash
load faults.bash
load live.bash
load kubelet.bash

# The age of a cached list, in seconds, that the kubelet sees while a containerd hangs.
STALE_S=15

setup_file() {
  rm -rf "$LIVE" "$DIR/live.sock.state"
  mkdir -p "$DIR/manifests"
  have_images
}

setup() {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=live
}

teardown_file() {
  signal CONT 1
  end_remaining TERM kubelet live
  remove_pods
}

# begin NAME RUNNING...: creates the pod NAME, waits until exactly the pods RUNNING run, and keeps the state of NAME.
begin() {
  static_pod "$1"
  until_running "${@:2}"
  states | grep "^$1 " | keep_as "state.$1"
}

# unchanged NAME...: checks that the kubelet has exactly these pods, with the same ids, addresses and start times, and
# that no container was restarted.
unchanged() {
  until_running "$@"
  equal "pods" "$(for name in "$@"; do kept "state.$name"; done)" "$(states)"
}

@test "a kubelet runs pods on a containerd" {
  static_pod first
  start_kubelet containerd-1
  begin first first
  begin second first second
  can_be_asked first
}

# check_node: prints the output of `check --node` on the machine of the checks' kubelet.
check_node() {
  "$CRISWITCH" check --node --config "$LIVE/criswitch.toml" 2>&1
}

@test "the kubelet moves to criswitch, and its pods keep running" {
  start_live
  if out=$(check_node); then fail "check --node found no problem: $out"; fi
  has "check --node" "unix://$DIR/containerd-1.sock" "$out"
  stop_kubelet
  start_kubelet live
  out=$(check_node)
  has "check --node" "unix://$DIR/live.sock" "$out"
  unchanged first second
  can_be_asked first
  can_be_asked second
}

# claims_pods NAME: succeeds when the backend lists pods that another backend owns; a condition for wait_for.
claims_pods() {
  backend_at live "$1" | jq -e '.claimedItems > 0'
}

@test "a second path to a containerd's socket loses no pod, as a second backend and as the same backend" {
  write conf.d/05-link.toml <<<"[backends]
link = \"$DIR/link.sock\""
  has "what reload prints" "backend added: link" "$(reload)"
  # The link is created after criswitch has read the configuration. criswitch therefore uses the link as a second
  # backend until its next start.
  ln -s "$DIR/containerd-1.sock" "$DIR/link.sock"
  wait_for 60 "the backend at the link" is_backend link ready
  wait_for 60 "its claims" claims_pods link
  equal "pods that are listed twice" "" "$(crictl_at live pods -q | sort | uniq -d)"
  unchanged first second
  can_be_asked first
  end_program KILL live
  start_live
  wait_for 60 "the state ready" is_backend old ready
  equal "pods that are listed twice" "" "$(crictl_at live pods -q | sort | uniq -d)"
  unchanged first second
  can_be_asked second
  rm "$DIR/link.sock" "$LIVE/conf.d/05-link.toml"
  reload >/dev/null
  unchanged first second
}

@test "new pods go to another containerd, the others stay on theirs" {
  write conf.d/10-new.toml <<<"[backends]
new = \"$DIR/containerd-2.sock\""
  sed 's/^runc = "old"/runc = "new"/' "$LIVE/criswitch.toml" | write criswitch.toml
  has "what reload prints" "handler moved: runc from old to new" "$(reload)"
  wait_for 60 "the new backend" is_backend new ready
  begin third first second third
  has_run_at 2 third
  unchanged first second third
  can_be_asked second
  can_be_asked third
}

# cached_lists_are_old: succeeds when the cached lists of the backend `old` are STALE_S seconds old; a condition for
# wait_for.
cached_lists_are_old() {
  backend_at live old | jq -e ".staleListAgeSeconds >= $STALE_S"
}

@test "a hanging containerd loses no pod and delays no other containerd" {
  signal STOP 1
  begin fourth first fourth second third
  has_run_at 2 fourth
  wait_for 60 "lists that are old" cached_lists_are_old
  unchanged first fourth second third
  can_be_asked fourth
  signal CONT 1
  wait_for 60 "the state ready" is_backend old ready
  unchanged first fourth second third
  can_be_asked first
}

@test "a killed and restarted containerd loses no pod" {
  end_program KILL containerd-1
  wait_for 60 "the state down" is_backend old down
  unchanged first fourth second third
  start_containerd 1
  wait_for 60 "the state ready" is_backend old ready
  unchanged first fourth second third
  can_be_asked second
}

@test "criswitch is killed and started again under the kubelet" {
  end_program KILL live
  start_live
  wait_for 60 "the state ready" is_backend old ready
  unchanged first fourth second third
  can_be_asked third
}

@test "the pods of the old containerd end with their files, and the empty containerd is removed" {
  rm "$DIR"/manifests/{first,second}.yaml
  unchanged fourth third
  # The kubelet removes ended pods once a minute.
  wait_for 150 "the old containerd to be empty" is_empty old
  equal "pods of the old containerd" "" "$(pods_at 1)"
  sed '/^old = /d' "$LIVE/criswitch.toml" | write criswitch.toml
  equal "what reload prints" "backend removed: old" "$(reload)"
  unchanged fourth third
}

# is_empty NAME: succeeds when the backend has no pods and no containers; a condition for wait_for.
is_empty() {
  backend_at live "$1" | jq -e '.pods == 0 and .containers == 0'
}

@test "the kubelet moves to the new containerd, and its pods keep running" {
  stop_kubelet
  equal "exit code of criswitch" 0 "$(stop_switch live)"
  start_kubelet containerd-2
  unchanged fourth third
  can_be_asked fourth
}
