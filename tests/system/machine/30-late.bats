# A boot in which one runtime never comes, and then comes late. The pods of the boot before have ended.

load ../runtimes/checks/helpers.bash
load machine.bash

@test "while a runtime has not come, the first list waits, then has the pods of the other" {
  wait_for 120 "containerd 1" network_ready 1
  pods=$(pods_at criswitch)
  show "the first list came $(($(cut -d . -f 1 /proc/uptime) - $(when criswitch.service ActiveEnter) / 1000000)) s" \
    "after the start of criswitch"
  equal "pods" "$(pods_at 1)" "$pods"
  equal "number of pods" 1 "$(wc -l <<<"$pods")"
}

@test "no pod or container of the boot before runs" {
  equal "ready pods" "" "$(pods_in_state ready)"
  equal "running containers" "" "$(cri ps -q)"
}

@test "status and the conditions name the runtime that has not come" {
  ! status=$(criswitch status) || fail "status finds nothing wrong"
  has "status" /run/containerd-2.sock "$status"
  grep -E '^second +(down|connecting)' <<<"$status" || fail "$status"
  condition=$(cri info | jq -c '.status.conditions[] | select(.type == "BackendsReady")')
  has "condition" '"status":false' "$condition"
  has "condition" second "$condition"
  equal "other conditions" "true true" "$(cri info |
    jq -r '[.status.conditions[] | select(.type | test("^(Runtime|Network)Ready$")) | .status] | join(" ")')"
}

@test "a new pod runs on the runtime that is there, and one for the other fails" {
  pod=$(run_pod runc new)
  equal "ready pods" "$pod" "$(pods_in_state ready)"
  has "refusal" Unavailable "$(refusal_at criswitch runp --runtime crun "$(pod_config other)")"
}

@test "when the runtime comes late, nothing of the boot before is lost" {
  systemctl enable --now containerd@2.service
  wait_for 120 "both runtimes" is_serving
  lists_are_whole
  equal "lost pods and containers" "" "$(comm -23 "$DIR/before" <(all_at criswitch))"
  equal "ready pods" 1 "$(pods_in_state ready | wc -l)"
  no_damaged_state
}

@test "pods of the boot before can be removed, and new ones run" {
  replace_pods
}
