# A restart of criswitch disturbs no pod, and the next process finds all pods again.

load helpers.bash

setup_file() {
  have_images
  for handler in $HANDLERS; do
    run_pod "$handler" "pod-$handler" | keep_as "pod.$handler"
    run_container "$(kept "pod.$handler")" "pod-$handler" loop 'trap "exit 0" TERM; while :; do sleep 1000 & wait $!; done' |
      keep_as "loop.$handler"
  done
}

teardown_file() {
  remove_pods
}

@test "a restart ends cleanly and disturbs no pod" {
  before=$(cri ps --no-trunc -q | sort)
  equal "exit code after SIGTERM" 0 "$(stop_switch criswitch)"
  [ ! -e "$DIR/criswitch.sock" ] || fail "the socket is still there after the end"
  equal "containers while criswitch is stopped" "$before" "$( (crictl_at 1 ps --no-trunc -q; crictl_at 2 ps --no-trunc -q) | sort)"
  start_switch criswitch
  equal "containers after the restart" "$before" "$(cri ps --no-trunc -q | sort)"
  equal "how many containers" 4 "$(wc -l <<<"$before")"
}

@test "owners are found again, by full and by short id" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: handler of the pod" "$handler" "$(cri inspectp "$(kept "pod.$handler" | cut -c1-13)" | jq -r .status.runtimeHandler)"
    equal "$handler: exec" back "$(cri exec "${id:0:13}" echo back)"
    equal "$handler: a new container" CONTAINER_RUNNING \
      "$(state_of "$(run_container "$(kept "pod.$handler")" "pod-$handler" second 'exec sleep 1000')")"
  done
}

@test "pods from before the restart can be stopped and removed" {
  for handler in $HANDLERS; do
    cri stop --timeout 5 "$(kept "loop.$handler")"
    cri rm "$(kept "loop.$handler")"
    cri stopp "$(kept "pod.$handler")"
    cri rmp "$(kept "pod.$handler" | cut -c1-13)"
  done
  equal "pods of containerd 1" "" "$(pods_at 1)"
  equal "pods of containerd 2" "" "$(pods_at 2)"
}
