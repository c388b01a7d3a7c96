# Pods: each in the runtime of its handler, and nowhere else.

load helpers.bash

teardown() {
  remove_pods
}

@test "a pod runs in the containerd of its handler" {
  pod=$(run_pod runc thin)
  equal "pods of containerd 2" "$pod" "$(pods_at 2)"
  equal "pods of containerd 1" "" "$(pods_at 1)"
  has "pods through the switch" "${pod:0:13}" "$(cri pods)"
}

@test "an unknown handler is refused by name and nothing is created" {
  run cri runp --runtime nosuch "$(pod_config refused)"
  equal "exit code of runp" 1 "$status"
  has "what crictl says" 'no runtime for \"nosuch\" is configured' "$output"
  equal "pods of containerd 1" "" "$(pods_at 1)"
  equal "pods of containerd 2" "" "$(pods_at 2)"
}
