# CRI-O beside containerd, with the table of the example: CRI-O is the node's runtime and runs pods without a handler.

load helpers.bash
load crio.bash

# The grace period of the slow stop, in seconds. The check ends the stop earlier.
STOP_S=180

setup_file() {
  start_crio true
  start_mixed
  crictl_at crio pull "$BUSYBOX" >/dev/null
  crictl_at 2 pull "$BUSYBOX" >/dev/null
  begin "" unnamed
  begin default named
  begin crun crun
  begin runc runc
}

teardown() {
  end_background
}

teardown_file() {
  crictl_at crio rmp -af >/dev/null 2>&1 || true
  remove_pods
  end_remaining TERM mixed crio
  rm -f "$DIR/crio/conf.d/nri.conf"
  ! mountpoint -q "$DIR/crio/root/overlay" || umount "$DIR/crio/root/overlay"
}

@test "pods are in the runtime of their handler, also without one, and lists show the handler" {
  for name in unnamed named crun; do
    has "$name: pods of CRI-O" "$(kept "pod.$name")" "$(pods_at crio)"
  done
  equal "pods of containerd" "$(kept pod.runc)" "$(crictl_at 2 pods -q --no-trunc)"
  wanted=$(jq -nc --arg unnamed "$(kept pod.unnamed)" --arg named "$(kept pod.named)" --arg crun "$(kept pod.crun)" \
    --arg runc "$(kept pod.runc)" '{($unnamed): "default", ($named): "default", ($crun): "crun", ($runc): "runc"}')
  equal "handlers in the list" "$(jq -cS . <<<"$wanted")" "$(handlers_listed)"
  for name in unnamed named crun runc; do
    equal "$name: handler in inspectp" "$(jq -r --arg id "$(kept "pod.$name")" '.[$id]' <<<"$wanted")" \
      "$(mixed inspectp "$(kept "pod.$name" | cut -c1-13)" | jq -r .status.runtimeHandler)"
  done
}

# handlers_listed: prints the handler of each pod as criswitch lists it.
handlers_listed() {
  mixed pods -o json | jq -cS '[.items[] | {key: .id, value: .runtimeHandler}] | from_entries'
}

@test "a pod that CRI-O had before is listed with its handler" {
  pod=$(crictl_at crio runp --runtime crun "$(pod_config before)")
  wait_for 60 "the handler of a pod that CRI-O lists without one" is_listed_as "$pod" crun
  equal "handler in CRI-O's list" "" "$(crictl_at crio pods -o json --id "$pod" | jq -r '.items[].runtimeHandler')"
  mixed rmp -f "$pod"
}

# is_listed_as ID HANDLER: succeeds when criswitch lists the pod with the handler; a condition for wait_for.
is_listed_as() {
  local seen
  seen=$(handlers_listed | jq -r --arg id "$1" '.[$id]')
  echo "$seen"
  [ "$seen" = "$2" ]
}

@test "exec, attach, logs, stats and inspect work for a container of CRI-O" {
  for name in unnamed crun; do
    id=$(kept "main.$name")
    equal "$name: exec" piped "$(echo piped | mixed exec -i "${id:0:13}" cat)"
    equal "$name: exec -s" hi "$(mixed exec -s "$id" echo hi)"
    has "$name: exec of what fails" "exit code 7" "$(refusal_at mixed exec "$id" sh -c 'exit 7')"
    equal "$name: log" begun "$(mixed logs "$id")"
    equal "$name: stats" "$id" "$(mixed stats -o json --id "$id" | jq -r '.stats[].attributes.id')"
    equal "$name: stats of the pod" "$(kept "pod.$name")" \
      "$(mixed statsp -o json --id "$(kept "pod.$name")" | jq -r '.stats[].attributes.id')"
    equal "$name: inspect" "$(crictl_at crio inspect "$id" | jq -S .)" "$(mixed inspect "$id" | jq -S .)"
  done
  pod=$(mixed runp --runtime crun "$(pod_config attached)")
  id=$(mixed create --no-pull "$pod" "$(container_config attached cat '.stdin = true | .stdin_once = true')" \
    "$DIR/pod-attached.json")
  mixed start "$id"
  equal "attach" joined "$(echo joined | timeout 60 "$(command -v crictl)" --config "$DIR/crictl-mixed.yaml" attach -i "$id")"
  mixed rmp -f "$pod"
}

@test "an image has the id of its runtime, and each id removes the image of its runtime only" {
  mixed pull registry.test/busybox:2 >/dev/null
  bare=$(crictl_at crio inspecti registry.test/busybox:2 | jq -r .status.id)
  prefixed=$(crictl_at 2 inspecti registry.test/busybox:2 | jq -r .status.id)
  equal "the id in containerd" "sha256:$bare" "$prefixed"
  equal "ids in the list" "$(printf '%s\n' "$bare" "$prefixed" | sort)" "$(ids_of registry.test/busybox:2)"
  for id in "$bare" "$prefixed" "${bare:0:13}"; do
    equal "inspecti $id" "$bare" "$(mixed inspecti "$id" | jq -r '.status.id | sub("^sha256:"; "")')"
  done
  mixed rmi "$bare"
  has "inspecti at CRI-O after rmi" "no such image" "$(refusal_at crio inspecti "$bare")"
  equal "inspecti at containerd" "$prefixed" "$(crictl_at 2 inspecti "$prefixed" | jq -r .status.id)"
  mixed rmi "$prefixed"
  equal "ids in the list after both" "" "$(ids_of registry.test/busybox:2)"
}

# ids_of IMAGE: prints the ids of the image as criswitch lists them.
ids_of() {
  mixed images -o json | jq -r --arg name "$1" '.images[] | select(.repoTags | index($name)) | .id' | sort
}

@test "every sample of both runtimes arrives, with as many values as its metric has keys" {
  both=$(for runtime in crio 2; do samples "$runtime"; done | sort)
  equal "samples" "$both" "$(samples mixed)"
  # Only CRI-O has the label `cpu`, and only containerd the label `device` of a file system.
  for sample in '_cpu_usage_seconds_total",.*\["cpu",' '_fs_limit_bytes",.*\["device",'; do
    grep -q "$sample" <<<"$both" || fail "no sample matches $sample"
  done
  echo "# $(wc -l <<<"$both") samples" >&3
}

@test "stats of all pods and containers are served while CRI-O stops a container" {
  pods=$(mixed statsp -o json | jq -r '.stats[].attributes.id' | sort)
  containers=$(mixed stats -o json | jq -r '.stats[].attributes.id' | sort)
  in_background "$BATS_TEST_TMPDIR/stop" crictl --config "$DIR/crictl-mixed.yaml" stop --timeout "$STOP_S" "$(kept main.named)"
  wait_for 60 "a call of CRI-O that hangs" hangs
  equal "stats of pods" "$pods" "$(mixed statsp -o json | jq -r '.stats[].attributes.id' | sort)"
  equal "stats of containers" "$containers" "$(mixed stats -o json | jq -r '.stats[].attributes.id' | sort)"
  equal "stats of one container" "$(kept main.crun)" \
    "$(mixed stats -o json --id "$(kept main.crun)" | jq -r '.stats[].attributes.id')"
  shown=$("$CRISWITCH" status --socket "$DIR/mixed.sock" || [ $? = 1 ])
  has "status" "backend crio has not answered calls for stats" "$shown"
  kill -0 "$BACKGROUND" || fail "the stop had ended before"
  kill -KILL "$(mixed inspect "$(kept main.named)" | jq .info.pid)"
  wait_for 60 "the end of the stop" has_stopped
  equal "stats of pods" "$pods" "$(mixed statsp -o json | jq -r '.stats[].attributes.id' | sort)"
}

# hangs: succeeds when CRI-O does not answer a call for the stats of all pods within a second; a condition for wait_for.
hangs() {
  ! timeout 1 "$(command -v crictl)" --config "$DIR/crictl-crio.yaml" statsp -o json
}

# CRI-O may crash when a container ends during other calls (cri-o/cri-o#9419), and is then started again.
has_stopped() {
  if [ -e "$DIR/crio.exit" ]; then
    crash=$(grep '^fatal error: ' "$DIR/crio.log") || return
    echo "# CRI-O has crashed: $crash" >&3
    start_crio true >"$BATS_TEST_TMPDIR/start" 2>&1 || return
  fi
  ! kill -0 "$BACKGROUND" && equal "state" CONTAINER_EXITED "$(mixed inspect "$(kept main.named)" | jq -r .status.state)"
}

@test "events of CRI-O and of containerd arrive" {
  in_background "$BATS_TEST_TMPDIR/events" crictl --config "$DIR/crictl-mixed.yaml" events
  for handler in crun runc; do
    wait_for 60 "an event of $handler" has_event "$handler"
  done
}

# has_event HANDLER: creates and removes a pod, and succeeds when the event of any such pod has arrived; a condition for
# wait_for. The stream may begin later than the first pod, which then has no event.
has_event() {
  local pod
  pod=$(mixed runp --runtime "$1" "$(pod_config "event-$1-$RANDOM")") && mixed rmp -f "$pod" >/dev/null || return
  echo "$pod" >>"$BATS_TEST_TMPDIR/$1"
  grep -q -F -f "$BATS_TEST_TMPDIR/$1" "$BATS_TEST_TMPDIR/events"
}

@test "CRI-O restarts with enable_nri = false, and its pods are listed and keep running" {
  grep -q " $DIR/nri-crio.sock$" /proc/net/unix || fail "CRI-O has no NRI socket"
  pods=$(mixed pods -q --no-trunc | sort)
  containers=$(mixed ps -q --no-trunc | sort)
  end_program TERM crio
  equal "pods while CRI-O is stopped" "$pods" "$(mixed pods -q --no-trunc | sort)"
  has "a call for its pod" 'backend \"crio\"' "$(refusal_at mixed inspectp "$(kept pod.crun)")"
  printf '[crio.nri]\nenable_nri = false\n' >"$DIR/crio/conf.d/nri.conf"
  start_crio false
  ! grep " $DIR/nri-crio.sock$" /proc/net/unix || fail "CRI-O has an NRI socket"
  wait_for 60 "an exec" mixed exec -s "$(kept main.crun)" echo back
  equal "pods" "$pods" "$(mixed pods -q --no-trunc | sort)"
  equal "containers" "$containers" "$(mixed ps -q --no-trunc | sort)"
  equal "the handler of a pod" default "$(handlers_listed | jq -r --arg id "$(kept pod.unnamed)" '.[$id]')"
}

@test "without enable_pod_events in CRI-O, events are Unimplemented for the node" {
  has "events" "code = Unimplemented" "$(refusal_at mixed events)"
  has "check --probe" 'backend "crio": GetContainerEvents is missing' "$("$CRISWITCH" check --probe --config "$DIR/mixed.toml")"
}

@test "pods of CRI-O are stopped and removed through criswitch" {
  for name in unnamed named crun; do
    mixed stop --timeout 1 "$(kept "main.$name")"
    mixed rm "$(kept "main.$name")"
    mixed stopp "$(kept "pod.$name")"
    mixed rmp "$(kept "pod.$name" | cut -c1-13)"
  done
  equal "pods of CRI-O" "" "$(pods_at crio)"
  equal "exit code of criswitch" 0 "$(stop_switch mixed)"
}
