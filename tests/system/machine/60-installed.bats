# The first boot of a node that `criswitch node apply` has changed.

load ../runtimes/checks/helpers.bash
load machine.bash
load node.bash

@test "at boot criswitch serves before the kubelet starts, and the kubelet's pods run" {
  wait_for 600 "the pods of the kubelet" pods_run
  local active kubelet
  active=$(when criswitch.service ActiveEnter) kubelet=$(when kubelet.service InactiveExit)
  show "criswitch after $((active / 1000)) ms, the kubelet after $((kubelet / 1000)) ms"
  [ "$active" -gt 0 ] && [ "$active" -le "$kubelet" ]
  equal "restarts" 0 "$(systemctl show --value --property=NRestarts criswitch.service)"
  lists_are_whole
  node status --ready
}

@test "the node loses criswitch again" {
  node uninstall
  wait_for 300 "the pods of the kubelet" pods_run
  wait_for 120 "a plan that rejects nothing" would_change
}
