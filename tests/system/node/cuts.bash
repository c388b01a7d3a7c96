# shellcheck shell=bash
# Interruptions of `criswitch node` in a node, at the boundaries that the program names.

FAULTS=(kill_process kill_cgroup stop_kubelet fill_disk renew_systemd cut_power)
NUMBER=0

# boundaries ARGUMENT...: runs a command of `criswitch node`, and prints the boundaries between its steps.
boundaries() {
  node "$@" --stop-at 1000000 | sed -n 's/^boundary \([0-9]*\): /\1 /p'
}

# cut_with_each BOUNDARY WHAT ARGUMENT...: runs a command of `criswitch node` and interrupts it at the boundary, once with
# each fault if CRISWITCH_FAULTS is `all`, else with one of them.
cut_with_each() {
  local fault faults=("${FAULTS[@]}")
  [ "${CRISWITCH_FAULTS:-}" = all ] || faults=("${FAULTS[NUMBER++ % ${#FAULTS[@]}]}")
  for fault in "${faults[@]}"; do
    cut_once "$fault" "$@" || return
  done
}

# cut_once FAULT BOUNDARY WHAT ARGUMENT...: runs a command of `criswitch node` until the boundary, and then the fault.
cut_once() {
  local fault=$1 boundary=$2 what="$1 before $3 of $4" pods started=$EPOCHREALTIME
  shift 3
  # A plan rejects pods that have just started.
  wait_for 60 "a plan that rejects nothing" would_change || return
  # After a boot the kubelet may still remove what was there before.
  [ "$1" != undo ] || wait_for 90 "the installation" node apply --spec /root/spec.toml || fail "$what" || return
  pods=$(everything)
  in_background "$BATS_TEST_TMPDIR/change" nsenter --target="$(cat "$DIR/node/pid")" --mount --pid --net --root --wdns=/ \
    /root/criswitch node "$@" --stop-at "$boundary"
  # A try repeats its pod if the kubelet stops it. A call for such a pod may last until its time limit.
  wait_for 240 "the boundary" is_stopped || fail "$what: $(cat "$BATS_TEST_TMPDIR/change")" || return
  if [ -n "${IS_LATE:-}" ]; then
    go_on
    sleep "0.$RANDOM"
  fi
  "$fault" || fail "$what" || return
  wait_for 120 "a whole node" is_whole || fail "$what: $(cat "$BATS_TEST_TMPDIR/change"; node status)" || return
  # A full disk does not prevent an undo.
  [ "$fault $1" != "fill_disk undo" ] || [[ $(node status) == undone* ]] || fail "$what: $(node status)" || return
  # The command has ended, so a later process may get its id. Forget the id, so that the teardown kills no other
  # process.
  wait_for 60 "the end of the command" has_no_process "$BACKGROUND" && : >"$BATS_TEST_TMPDIR/background"
  [ "$fault" = cut_power ] || same "pods and containers: $what" "$pods" "$(everything)" || return
  echo "# $what: $(node status | head -n 1), $(awk -v from="$started" -v to="$EPOCHREALTIME" 'BEGIN {
    printf "%.1f", to - from}') s" >&3
  node uninstall >/dev/null
}

# is_stopped: succeeds when the process of the change has stopped; a condition for wait_for.
is_stopped() {
  grep -q '^State:.T' "$(root)/proc/$(in_node systemctl show --value --property=MainPID "$APPLY")/status"
}

has_no_process() {
  ! kill -0 "$1"
}

go_on() {
  in_node systemctl kill --kill-who=main --signal=CONT "$APPLY" 2>/dev/null || true
}

kill_process() {
  in_node systemctl kill --kill-who=main --signal=KILL "$APPLY" || has_ended
}

kill_cgroup() {
  in_node systemctl kill --signal=KILL "$APPLY" || has_ended
}

# The change may restart the kubelet during the stop, and so cancel the stop.
stop_kubelet() {
  local said
  said=$(in_node systemctl stop kubelet 2>&1) || [[ $said == *canceled* ]] || fail "$said" || return
  go_on && wait_for 120 "the end of the change" has_ended && in_node systemctl start kubelet
}

# If the disk is full, containerd may be unable to stop a pod of a try, and the change waits for this pod.
fill_disk() {
  wait_for 60 "a full disk" has_no_room && go_on || return
  wait_for 60 "the end of the change" has_ended || echo "# the change goes on with a full disk" >&3
  mount -o remount,size=50% "$DIR/node/disk"
}

# has_no_room: leaves no room on the disk of the node; a condition for wait_for, because the node may need more meanwhile.
has_no_room() {
  mount -o "remount,size=$(df --output=used --block-size=1 "$DIR/node/disk" | tail -n 1)" "$DIR/node/disk"
}

renew_systemd() {
  in_node systemctl daemon-reexec && go_on
}

cut_power() {
  lose_power && start_link && boot_node && remove_rest
}

# remove_rest: runs the undo with which each command begins. If the power is cut while the recover unit is created or
# removed, files of the unit may be left that systemd does not start, beside a closed journal.
remove_rest() {
  [ -L "$(root)/etc/systemd/system/multi-user.target.wants/criswitch-recover.service" ] ||
    node status | grep -q ^interrupted || in_node /root/criswitch node undo --here --interrupted
}

# is_whole: succeeds when the node is as before or as after the change, without leftovers of the change, and its pods
# run; a condition for wait_for.
is_whole() {
  local state left files units ours=
  has_ended || return
  state=$(node status | head -n 1)
  echo "$state"
  case $state in
    notInstalled* | failed* | undone*) files=before units='criswitch*' ;;
    installed*) files=after units='criswitch-*' ours=criswitch-metrics.socket ;;
    *) return 1 ;;
  esac
  left=$(in_node systemctl list-units --all --plain --no-legend "$units" | awk -v ours="$ours" '$1 != ours')
  [ -z "$left" ] || { echo "left: $left"; return 1; }
  diff <(kept "$files") <(files_of_node) && pods_run
}

# pods_run: succeeds when the kubelet is healthy, its node Ready, and each container of its pods runs and is ready; a
# condition for wait_for.
pods_run() {
  local listed ready
  in_node curl -sSf -o /dev/null --max-time 5 http://127.0.0.1:10248/healthz && is_ready >/dev/null || return
  listed=$(crictl_at 1 ps -q && crictl_at 2 ps -q) || return
  ready=$(api api/v1/namespaces/suite/pods | jq -r '.items[] | .status.containerStatuses // [{}] | .[] |
    if .ready then .containerID | split("//")[1] else "none" end') || return
  [ -n "$ready" ] && ! grep -vxF "$listed" <<<"$ready"
}
