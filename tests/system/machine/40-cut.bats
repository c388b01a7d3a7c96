# The boot after a power cut, while a client created and removed pods. The file `pods` in the share has the facts that
# the client had seen.

load ../runtimes/checks/helpers.bash
load machine.bash

setup_file() {
  wait_for 120 "both runtimes" is_serving
}

# seen WHAT: prints the sorted ids of the pods for which the client has recorded WHAT.
seen() {
  sed -n "s/^$1 //p" /share/pods | sort
}

@test "after a power cut, criswitch lists what the runtimes list, and nothing runs" {
  lists_are_whole
  equal "ready pods" "" "$(pods_in_state ready)"
  equal "running containers" "" "$(cri ps -q)"
  no_damaged_state
}

@test "after a power cut, no pod that a client has seen is lost, and no removed pod is back" {
  show "the client saw $(seen created | wc -l) pods, and removed $(seen removed | wc -l)"
  equal "lost pods" "" "$(comm -23 <(seen created) <({ seen removing && pods_at criswitch; } | sort -u))"
  equal "pods that are back" "" "$(comm -12 <(seen removed) <(pods_at criswitch))"
}

@test "after a power cut, pods are removed, and new ones run" {
  replace_pods
}
