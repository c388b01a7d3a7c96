# Containers, in a pod of each handler.

load helpers.bash

# A command that prints the kernel's version and then waits. It ends at once on SIGTERM.
LOOP='uname -r; echo complaint >&2; trap "exit 0" TERM; while :; do sleep 1000 & wait $!; done'

setup_file() {
  have_images
  for handler in $HANDLERS; do
    run_pod "$handler" "pod-$handler" | keep_as "pod.$handler"
    run_container "$(kept "pod.$handler")" "pod-$handler" loop "$LOOP" | keep_as "loop.$handler"
  done
}

teardown_file() {
  remove_pods
}

teardown() {
  end_background
  # Removes the containers that a failed check left behind.
  for id in $(cri ps -qa --no-trunc); do
    has_id "$id" || cri rm -f "$id"
  done
}

# has_id ID: succeeds if the checks of this file share the container.
has_id() {
  grep -q "^$1$" "$BATS_FILE_TMPDIR"/loop.*
}

# new_container HANDLER NAME SHELL-COMMAND [JQ-FILTER]: starts a container in the handler's pod; prints its id.
new_container() {
  run_container "$(kept "pod.$1")" "pod-$1" "${@:2}"
}

@test "create and start run a container, with a full and a short id" {
  for handler in $HANDLERS; do
    pod=$(kept "pod.$handler")
    id=$(cri create --no-pull "${pod:0:13}" "$(container_config created "$LOOP")" "$DIR/pod-pod-$handler.json")
    equal "$handler: state after create" CONTAINER_CREATED "$(state_of "$id")"
    cri start "${id:0:13}"
    equal "$handler: state after start" CONTAINER_RUNNING "$(state_of "$id")"
    has "$handler: containers of its containerd" "$id" "$(crictl_at "$(owner_of "$handler")" ps -q --no-trunc)"
    lacks "$handler: containers of the other" "$id" "$(crictl_at "$(other_than "$(owner_of "$handler")")" ps -qa)"
    cri rm -f "$id"
  done
}

@test "run starts a pod and its container at once" {
  for handler in $HANDLERS; do
    id=$(cri run --no-pull --runtime "$handler" "$(container_config run "$LOOP")" "$(pod_config "run-$handler")")
    equal "$handler: state" CONTAINER_RUNNING "$(state_of "$id")"
    pod=$(cri pods -q --no-trunc --name "^run-$handler$")
    has "$handler: pods of its containerd" "$pod" "$(pods_at "$(owner_of "$handler")")"
    cri rmp -f "$pod"
  done
}

@test "run of an unknown handler leaves nothing behind" {
  before=$(pods_at 1; pods_at 2)
  run cri run --no-pull --runtime nosuch "$(container_config run "$LOOP")" "$(pod_config refused)"
  equal "exit code of run" 1 "$status"
  has "what crictl says" 'no runtime for \"nosuch\" is configured' "$output"
  equal "pods of both containerds" "$before" "$(pods_at 1; pods_at 2)"
}

@test "uname shows the kernel of a container's runtime" {
  for handler in $HANDLERS; do
    seen=$(cri exec -s "$(kept "loop.$handler")" uname -r)
    case $handler in
      gvisor | sandboxed) has "$handler: kernel" gvisor "$seen" ;;
      *) equal "$handler: kernel" "$(uname -r)" "$seen" ;;
    esac
  done
}

@test "exec streams both ways and reports a failure" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: exec" hi "$(cri exec "$id" echo hi)"
    equal "$handler: exec -i by short id" piped "$(echo piped | cri exec -i "${id:0:13}" cat)"
    has "$handler: exec of what fails" "exit code 7" "$(refusal_at criswitch exec "$id" sh -c 'exit 7')"
  done
}

@test "exec -s returns output, errors and exit code" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: exec -s by short id" hi "$(cri exec -s "${id:0:13}" echo hi)"
    same_refusal "$(owner_of "$handler")" exec -s "$id" sh -c 'echo sorry >&2; exit 7'
  done
}

@test "exec -s ends at its timeout" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    same_refusal "$(owner_of "$handler")" exec -s --timeout 1 "$id" sleep 100
  done
}

@test "attach joins a container's input and output" {
  for handler in $HANDLERS; do
    id=$(new_container "$handler" attached cat '.stdin = true | .stdin_once = true')
    equal "$handler: what comes back" joined "$(echo joined | timeout 60 "$(command -v crictl)" \
      --config "$DIR/crictl-criswitch.yaml" attach -i "$id")"
    wait_for 60 "$handler: the end of the container" is_in_state "$id" CONTAINER_EXITED
    cri rm "$id"
  done
}

@test "port-forward reaches into a pod" {
  # Port-forwarding into gVisor fails with containerd alone too.
  for handler in runc crun; do
    id=$(new_container "$handler" web 'echo page >/www/index.html; exec httpd -f -p 8080 -h /www')
    wait_for 60 "$handler: the server in the pod" cri exec -s "$id" wget -q -O - http://127.0.0.1:8080/
    in_background "$BATS_TEST_TMPDIR/forward-$handler" crictl --config "$DIR/crictl-criswitch.yaml" \
      port-forward "$(kept "pod.$handler" | cut -c1-13)" :8080
    wait_for 60 "$handler: a local port" grep -q 'Forwarding from 127' "$BATS_TEST_TMPDIR/forward-$handler"
    port=$(sed -n 's/.*Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$BATS_TEST_TMPDIR/forward-$handler" | head -n 1)
    equal "$handler: the page" page "$(busybox wget -q -O - "http://127.0.0.1:$port/")"
    kill "$BACKGROUND"
    cri rm -f "$id"
  done
}

@test "logs are the container's" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: output" "$(cri exec -s "$id" uname -r)" "$(cri logs "$id" 2>/dev/null)"
    equal "$handler: errors, by short id" complaint "$(cri logs "${id:0:13}" 2>&1 >/dev/null)"
  done
}

@test "ps lists every container once, and finds it by id, pod, name and state" {
  wanted=$(for handler in $HANDLERS; do kept "loop.$handler"; done | sort)
  equal "ps" "$wanted" "$(cri ps -q --no-trunc | sort)"
  equal "ps --name" "$wanted" "$(cri ps -q --no-trunc --name '^loop$' | sort)"
  equal "ps --state exited" "" "$(cri ps -q --state exited)"
  equal "ps --pod of an unknown pod" "" "$(cri ps -q --pod 0123456789)"
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: ps --id" "$id" "$(cri ps -q --no-trunc --id "${id:0:13}")"
    equal "$handler: ps --pod" "$id" "$(cri ps -q --no-trunc --pod "$(kept "pod.$handler" | cut -c1-13)")"
    has "$handler: the pod in the list" "$(kept "pod.$handler" | cut -c1-13)" "$(cri ps --id "$id")"
  done
}

@test "inspect shows a container by full and short id, as its containerd does" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: inspect" "$(crictl_at "$(owner_of "$handler")" inspect "$id" | jq -S .)" "$(cri inspect "$id" | jq -S .)"
    equal "$handler: id" "$id" "$(cri inspect "${id:0:13}" | jq -r .status.id)"
  done
}

@test "stats of one container and of all" {
  for handler in $HANDLERS; do
    id=$(kept "loop.$handler")
    equal "$handler: stats --id" "$id" "$(cri stats -o json --id "${id:0:13}" | jq -r '.stats[].attributes.id')"
  done
  wanted=$(for handler in $HANDLERS; do kept "loop.$handler"; done | sort)
  equal "stats" "$wanted" "$(cri stats -o json | jq -r '.stats[].attributes.id' | sort)"
}

@test "update changes a container's resources" {
  for handler in runc crun; do
    id=$(kept "loop.$handler")
    cri update --cpu-share 512 "${id:0:13}"
    file=$(find /sys/fs/cgroup -path "*$id*" \( -name cpu.shares -o -name cpu.weight \) | head -n 1)
    case $file in
      *cpu.shares) equal "$handler: cpu.shares" 512 "$(cat "$file")" ;;
      *cpu.weight) equal "$handler: cpu.weight" 20 "$(cat "$file")" ;;
      *) fail "$handler: no cgroup of $id" ;;
    esac
  done
  # The suite does not use gVisor's cgroups, so it can check only the reply of gVisor's shim.
  for handler in gvisor sandboxed; do
    same_outcome 2 update --cpu-share 512 "$(kept "loop.$handler")"
  done
}

@test "checkpoint has the outcome of its containerd" {
  for handler in $HANDLERS; do
    same_outcome "$(owner_of "$handler")" checkpoint --export="$BATS_TEST_TMPDIR/$handler.tar" "$(kept "loop.$handler")"
  done
}

@test "stop and rm end a container by full and by short id" {
  for handler in $HANDLERS; do
    full=$(new_container "$handler" full "$LOOP")
    short=$(new_container "$handler" short "$LOOP")
    cri stop --timeout 5 "$full"
    cri stop --timeout 5 "${short:0:13}"
    for id in "$full" "$short"; do
      equal "$handler: state after stop" CONTAINER_EXITED "$(state_of "$id")"
    done
    cri rm "$full"
    cri rm "${short:0:13}"
    for id in "$full" "$short"; do
      lacks "$handler: containers of its containerd after rm" "$id" "$(crictl_at "$(owner_of "$handler")" ps -qa --no-trunc)"
      has "$handler: inspect after rm" "code = NotFound" "$(refusal_at criswitch inspect "$id")"
    done
  done
}

@test "an exit code is kept" {
  for handler in $HANDLERS; do
    id=$(new_container "$handler" exits 'exit 42')
    wait_for 60 "$handler: the end of the container" is_in_state "$id" CONTAINER_EXITED
    equal "$handler: exit code" 42 "$(cri inspect "$id" | jq .status.exitCode)"
    cri rm "$id"
  done
}
