# shellcheck shell=bash
# Shared by the checks in the machine.

import_images() {
  local n image
  for n in 1 2; do
    wait_for 120 "containerd $n" network_ready "$n" || return
    for image in pause busybox; do
      ctr -a "/run/containerd-$n.sock" -n k8s.io images import "/opt/images/$image.tar" >/dev/null || return
    done
  done
}

configuration() {
  cat <<'TOML'
default_handler = "runc"
[handlers]
runc = "first"
crun = "second"
[backends]
first = "/run/containerd-1.sock"
second = "/run/containerd-2.sock"
TOML
}

# show TEXT...: prints a line between the results.
show() {
  echo "# $*" >&3
}

# when UNIT PROPERTY: prints when the unit entered a state, in microseconds since the boot.
when() {
  systemctl show --value --property="$2TimestampMonotonic" "$1"
}

# process UNIT: prints the id of the unit's main process.
process() {
  systemctl show --value --property=MainPID "$1"
}

# is_process_other_than UNIT PID: succeeds when the unit has another main process; a condition for wait_for.
is_process_other_than() {
  local pid
  pid=$(process "$1")
  [ "$pid" != 0 ] && [ "$pid" != "$2" ]
}

# pods_in_state STATE [WHERE]: prints the ids of the pods in this state, sorted.
pods_in_state() {
  crictl_at "${2:-criswitch}" pods --state "$1" -q | sort
}

# all_at WHERE: prints the ids of all pods and containers, sorted.
all_at() {
  { crictl_at "$1" pods -q && crictl_at "$1" ps -aq; } | sort
}

# lists_are_whole: checks that criswitch lists what the runtimes list.
lists_are_whole() {
  local runtimes
  runtimes=$({ all_at 1 && all_at 2; } | sort) || return
  equal "pods and containers" "$runtimes" "$(all_at criswitch)"
}

# replace_pods: removes all pods, and runs and removes a new one of each handler.
replace_pods() {
  local handler
  cri rmp -af && equal "pods and containers" "" "$(all_at criswitch)" || return
  for handler in runc crun; do
    cri rmp -f "$(run_pod "$handler" again)" || return
  done
}

# is_serving: succeeds when `status` finds nothing wrong; a condition for wait_for.
is_serving() {
  criswitch status
}

# no_damaged_state: checks that criswitch trusts its files.
no_damaged_state() {
  equal "damaged files of state" "" "$(find /var/lib/criswitch /run/criswitch -name '*.bad')"
}
