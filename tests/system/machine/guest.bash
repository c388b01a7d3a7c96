#!/bin/bash
# Runs in the machine at each boot: the checks that the share's file `checks` names, then the function that its file
# `order` names, when run.sh has written it.

export REAL=/share/runtimes CRISWITCH=/usr/bin/criswitch DIR=/var/lib/suite.slice TMPDIR=/run
# A command that waits must leave the slow processor to other processes.
export PAUSE_S=2

main() {
  bats --tap --timing "/share/machine/$(cat /share/checks).bats" >/share/tap 2>&1
  echo $? >/share/status
  until [ -s /share/order ]; do sleep 0.5; done
  "$(mv /share/order /run/order && cat /run/order)"
}

restart() {
  systemctl reboot
}

# churn: creates pods and removes some of them, until the power is cut. The client writes the facts that it has seen to
# the share's file `pods`.
churn() {
  local number handler id
  # shellcheck disable=SC2317 # The sourced file uses it.
  bats_require_minimum_version() { :; }
  # shellcheck source=tests/system/runtimes/checks/helpers.bash
  . "$REAL/checks/helpers.bash"
  for ((number = 1; ; number++)); do
    handler=runc
    [ $((number % 2)) = 1 ] || handler=crun
    id=$(run_pod "$handler" "pod-$number") || continue
    echo "created $id" >>/share/pods
    [ $((number % 3)) = 0 ] || continue
    echo "removing $id" >>/share/pods
    cri rmp -f "$id" >/dev/null && echo "removed $id" >>/share/pods
  done
}

# change: changes the node with the arguments in the share's file `change`, until the power is cut.
change() {
  local arguments
  read -ra arguments </share/change
  /root/criswitch node "${arguments[@]}" >/share/changed 2>&1
}

main
