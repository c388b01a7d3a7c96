# Each pod is in the runtime of its handler, and in no other runtime.

load helpers.bash

setup_file() {
  for handler in $HANDLERS; do
    run_pod "$handler" "pod-$handler" | keep_as "$handler"
  done
}

teardown_file() {
  remove_pods
}

# containers_at N: prints the ids of pods and containers in the store of containerd N.
containers_at() {
  ctr --address "$DIR/containerd-$1.sock" --namespace k8s.io containers ls -q
}

# runtime_list RUNTIME N [QUIET-FLAG]: prints the ids in the state of the low-level runtime.
runtime_list() {
  "$1" --root "$DIR/containerd-$2/$1/k8s.io" list "${3:--q}"
}

@test "a pod is in the containerd of its handler and not in the other" {
  for handler in $HANDLERS; do
    id=$(kept "$handler")
    owner=$(owner_of "$handler")
    has "$handler: containers of containerd $owner" "$id" "$(containers_at "$owner")"
    lacks "$handler: containers of containerd $(other_than "$owner")" "$id" "$(containers_at "$(other_than "$owner")")"
  done
}

@test "a pod is in the runtime of its handler and in no other" {
  runc=$(runtime_list runc 2)
  crun=$(runtime_list crun 1)
  runsc=$(runtime_list runsc 2 -quiet)
  equal "what runc runs" "$(kept runc)" "$runc"
  equal "what crun runs" "$(kept crun)" "$crun"
  equal "what runsc runs" "$(printf '%s\n' "$(kept gvisor)" "$(kept sandboxed)" | sort)" "$(sort <<<"$runsc")"
}

@test "a pod without a handler runs in the table's default" {
  id=$(cri runp "$(pod_config none)")
  has "pods of containerd 2" "$id" "$(pods_at 2)"
  equal "the handler it got there" runc "$(crictl_at 2 inspectp "$id" | jq -r .status.runtimeHandler)"
  cri rmp -f "$id"
}

@test "an unknown handler is rejected by name and nothing is created" {
  before=$(containers_at 1; containers_at 2)
  run cri runp --runtime nosuch "$(pod_config refused)"
  equal "exit code of runp" 1 "$status"
  has "what crictl says" 'no runtime for \"nosuch\" is configured' "$output"
  for handler in $HANDLERS; do
    has "the handlers there are" "$handler" "$output"
  done
  equal "containers of both containerds" "$before" "$(containers_at 1; containers_at 2)"
  lacks "pods through criswitch" refused "$(cri pods)"
}

@test "a handler that only a backend knows is rejected" {
  run cri runp --runtime runsc "$(pod_config refused)"
  equal "exit code of runp" 1 "$status"
  has "what crictl says" 'no runtime for \"runsc\" is configured' "$output"
}

@test "pods lists every pod once, under the handler that was asked for" {
  seen=$(cri pods -o json | jq -cS '[.items[] | {key: .id, value: .runtimeHandler}] | from_entries')
  wanted=$(for handler in $HANDLERS; do jq -n --arg id "$(kept "$handler")" --arg h "$handler" '{($id): $h}'; done |
    jq -cS -s add)
  equal "pods and handlers" "$wanted" "$seen"
  equal "how many pods" 4 "$(cri pods -q | wc -l)"
}

@test "pods finds a pod by short id, name, label and state" {
  for handler in $HANDLERS; do
    id=$(kept "$handler")
    equal "pods --id of $handler" "$id" "$(cri pods -q --no-trunc --id "${id:0:13}")"
    equal "pods --name of $handler" "$id" "$(cri pods -q --no-trunc --name "^pod-$handler$")"
    equal "pods --label of $handler" "$id" "$(cri pods -q --no-trunc --label "io.kubernetes.pod.uid=uid-pod-$handler")"
  done
  equal "pods that are not ready" "" "$(cri pods -q --state NotReady)"
  equal "pods with an unknown id" "" "$(cri pods -q --id 0123456789)"
}

@test "inspectp shows a pod by full and short id, as its containerd does" {
  for handler in $HANDLERS; do
    id=$(kept "$handler")
    short=$(cri inspectp "${id:0:13}")
    equal "$handler: id" "$id" "$(jq -r .status.id <<<"$short")"
    equal "$handler: handler" "$handler" "$(jq -r .status.runtimeHandler <<<"$short")"
    # Everything except the handler's name comes from the containerd.
    equal "$handler: inspectp" "$(crictl_at "$(owner_of "$handler")" inspectp "$id" | jq -S 'del(.status.runtimeHandler)')" \
      "$(cri inspectp "$id" | jq -S 'del(.status.runtimeHandler)')"
  done
}

@test "statsp of one pod is the reply of its containerd, even if it is an error" {
  for handler in $HANDLERS; do
    same_outcome "$(owner_of "$handler")" statsp -o json --id "$(kept "$handler")"
  done
}

@test "statsp of all pods has all of them, or the error of a containerd" {
  if out=$(crictl_at 2 statsp -o json 2>&1); then
    equal "pods with stats" 4 "$(cri statsp -o json | jq '.stats | length')"
  else
    has "the reason" "cgroup" "$out"
    same_refusal 2 statsp -o json
  fi
}

@test "metricsp has the pods of the backends that have metrics" {
  ids='[.podMetrics[].podSandboxId] | sort'
  equal "pods with metrics" "$(crictl_at 2 metricsp | jq -c "$ids")" "$(cri metricsp | jq -c "$ids")"
  has "pods with metrics" "$(kept runc)" "$(cri metricsp)"
}

@test "every call for an unknown id reports NotFound" {
  id=0123456789abcdef
  has "inspectp" "code = NotFound" "$(refusal_at criswitch inspectp $id)"
  has "inspect" "code = NotFound" "$(refusal_at criswitch inspect $id)"
  has "exec" "code = NotFound" "$(refusal_at criswitch exec $id true)"
  has "exec -s" "code = NotFound" "$(refusal_at criswitch exec -s $id true)"
  has "attach" "code = NotFound" "$(refusal_at criswitch attach $id)"
  has "start" "code = NotFound" "$(refusal_at criswitch start $id)"
  has "update" "code = NotFound" "$(refusal_at criswitch update --cpu-share 512 $id)"
  has "port-forward" "code = NotFound" "$(refusal_at criswitch port-forward $id :80)"
}

@test "stopping an unknown pod or container succeeds" {
  cri stopp 0123456789abcdef
  cri stop 0123456789abcdef
}

@test "a short id that fits several pods is rejected" {
  # Ids are hexadecimal, so of seventeen ids at least two begin with the same digit. Usually fewer ids are enough.
  prefix=$(cri pods -q | cut -c1 | sort | uniq -d | head -n 1)
  [ -n "$prefix" ] || prefix=$(common_prefix)
  has "inspectp $prefix" "Multiple IDs found with provided prefix: $prefix" "$(refusal_at criswitch inspectp "$prefix")"
}

# common_prefix: creates pods on both containerds in turn until two ids begin with the same digit.
common_prefix() {
  local prefix n
  for n in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
    if [ $((n % 2)) = 0 ]; then run_pod runc "more-$n"; else run_pod crun "more-$n"; fi >/dev/null || return
    prefix=$(cri pods -q | cut -c1 | sort | uniq -d | head -n 1)
    if [ -n "$prefix" ]; then
      echo "$prefix"
      return
    fi
  done
  fail "seventeen ids and no two with the same first digit"
}

@test "stopp and rmp end a pod by full and by short id" {
  for handler in $HANDLERS; do
    full=$(run_pod "$handler" "full-$handler")
    short=$(run_pod "$handler" "short-$handler")
    cri stopp "$full"
    cri stopp "${short:0:13}"
    for id in "$full" "$short"; do
      equal "$handler: state after stopp" SANDBOX_NOTREADY "$(cri inspectp "$id" | jq -r .status.state)"
    done
    cri rmp "$full"
    cri rmp "${short:0:13}"
    for id in "$full" "$short"; do
      lacks "$handler: pods of its containerd after rmp" "$id" "$(pods_at "$(owner_of "$handler")")"
      has "$handler: inspectp after rmp" "code = NotFound" "$(refusal_at criswitch inspectp "$id")"
    done
  done
}
