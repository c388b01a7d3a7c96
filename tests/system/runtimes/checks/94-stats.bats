# A kubelet with the feature gates PodAndContainerStatsFromCRI and EventedPLEG, which takes stats, metrics and events from the
# CRI: with two containerds that have all RPCs, and then also with one that lacks some. The checks are the steps, from
# first to last.

load helpers.bash
load faults.bash
load live.bash
load kubelet.bash

setup_file() {
  rm -rf "$LIVE" "$DIR/live.sock.state" "$DIR/manifests"
  mkdir -p "$LIVE/conf.d" "$DIR/manifests"
  for n in 1 2 3; do
    crictl_at "$n" pull "$BUSYBOX" >/dev/null
  done
  new_pods_on second
  start_live
  start_gated
}

setup() {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=live
}

teardown_file() {
  end_remaining TERM kubelet live
  rm -rf "$DIR/manifests"
  remove_pods
}

# new_pods_on BACKEND: writes the configuration in which new pods go to this backend.
new_pods_on() {
  write criswitch.toml <<TABLE
listen = "$DIR/live.sock"
default_handler = "runc"
[handlers]
runc = "$1"
[backends]
first = "$DIR/containerd-1.sock"
second = "$DIR/containerd-2.sock"
third = "$DIR/containerd-3.sock"
TABLE
  [ "$1" = first ] || sed '/^first = /d' "$LIVE/criswitch.toml" | write criswitch.toml
}

# The summary has the stats of file systems only if the kubelet isolates local storage.
start_gated() {
  start_kubelet live --feature-gates PodAndContainerStatsFromCRI=true,EventedPLEG=true --local-storage-capacity-isolation
}

# summary_has NAME...: succeeds when exactly these pods have complete stats in the kubelet's summary; a condition for
# wait_for.
summary_has() {
  local seen
  seen=$(kubelet_says stats/summary) || return
  jq -c '.pods[]' <<<"$seen"
  [ "$(jq -r '.pods[] | select(.cpu.usageCoreNanoSeconds > 0 and .memory.workingSetBytes > 0
    and .process_stats.process_count > 0 and .network.rxBytes >= 0
    and (.containers | length == 1) and (.containers[0] | .name == "main" and .cpu.usageCoreNanoSeconds > 0
      and .memory.workingSetBytes > 0 and .rootfs.usedBytes > 0))
    | .podRef.name | rtrimstr("-node")' <<<"$seen" | sort)" = "$(printf '%s\n' "$@")" ]
}

# families NAME: prints the families of the pod's container in the kubelet's metrics of containers.
families() {
  kubelet_says metrics/cadvisor | sed -n "s/{.*container=\"main\".*pod=\"$1-node\".*//p" | sort -u
}

# has_families NAME: succeeds when the metrics of the pod's container are complete; a condition for wait_for. A kernel
# without pressure stall information has fewer of the 32 families.
has_families() {
  local seen all=32
  [ -e /proc/pressure ] || all=25
  seen=$(families "$1")
  echo "$seen"
  [ "$(wc -l <<<"$seen")" -ge "$all" ]
}

# streams: prints how many streams of events the kubelet has opened, and how many failed.
streams() {
  kubelet_says metrics | sed -n 's/^kubelet_evented_pleg_connection_\(success\|error\)_count \([0-9]*\)$/\1 \2/p' | sort
}

@test "stats, metrics and events are complete with two containerds that have the RPCs" {
  static_pod first
  until_running first
  new_pods_on third
  reload >/dev/null
  wait_for 60 "the backend" is_backend third ready
  static_pod second
  until_running first second
  has_run_at 2 first
  has_run_at 3 second
  wait_for 60 "stats of both pods" summary_has first second
  wait_for 60 "metrics of a pod" has_families first
  wait_for 60 "metrics of a pod" has_families second
  equal "families of metrics" "$(families first)" "$(families second)"
  echo "# $(families first | wc -l) families of metrics" >&3
  equal "streams of events" $'error 0\nsuccess 1' "$(streams)"
}

@test "a containerd without some of the RPCs: stats are complete, the others keep their metrics, and ends of pods are seen" {
  new_pods_on first
  reload >/dev/null
  wait_for 60 "the backend" is_backend first ready
  static_pod third
  until_running first second third
  has_run_at 1 third
  wait_for 60 "stats of all pods" summary_has first second third
  stop_kubelet
  start_gated
  until_running first second third
  wait_for 60 "stats of all pods" summary_has first second third
  for name in first second; do
    wait_for 60 "metrics of a pod" has_families "$name"
  done
  equal "metrics of the pod of the older containerd" "" "$(families third)"
  has "streams of events" "error 5" "$(streams)"
  rm "$DIR"/manifests/{first,third}.yaml
  until_running second
}
