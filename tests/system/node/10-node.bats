# A real node gets criswitch, gets an upgrade of it, and loses it again. Meanwhile its pods run.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/kubelet.bash
load node.bash
load ../runtimes/checks/cluster.bash

# The number of moments between two at which an apply is killed.
STRIDE=${CRISWITCH_STRIDE:-20}

setup_file() {
  start_link
  start_cluster
  start_node_of_systemd
  kubectl_at_cluster apply -f "$NODE/pods.yaml" >/dev/null
  render static-pod.yaml "$(root)/etc/kubernetes/manifests/fixed.yaml" NAME=fixed
  for name in fixed-node guest host web; do
    wait_for 90 "the pod $name" pod_is "$name" "$RUNS and ([.status.containerStatuses[].ready] | all)"
  done
  specify 1
  # A plan rejects a node whose pods have just started.
  wait_for 20 "a plan that rejects nothing" would_change
  files_of_node | keep_as files
}

teardown() {
  end_background
}

teardown_file() {
  end_program TERM node || true
  for program in apiserver etcd; do
    end_program KILL "$program" || true
  done
}

# would_change: succeeds when a plan would change the node; a condition for wait_for.
would_change() {
  node plan --spec /root/spec.toml || [ $? = 2 ]
}

# disturb_nothing COMMAND...: runs the command. No pod or container may change, the pod `web` must answer each request,
# a stream from a runtime must go on, and the node must stay Ready.
disturb_nothing() {
  local codes=$BATS_TEST_TMPDIR/codes address before out
  address=$(api api/v1/namespaces/suite/pods/web | jq -r .status.podIP)
  watch_heartbeats
  stream runtime nsenter --target="$(cat "$DIR/node/pid")" --net crictl --config "$DIR/crictl-2.yaml" exec \
    "$(crictl_at 2 ps -q --name writer)" "${LOOP[@]}"
  stream exec kubectl --kubeconfig "$DIR/cluster/kubeconfig" -n suite exec web -c main -- "${LOOP[@]}"
  stream logs kubectl --kubeconfig "$DIR/cluster/kubeconfig" -n suite logs --tail=1 -f web -c writer
  in_background "$codes" nsenter --target="$(cat "$DIR/node/pid")" --net stdbuf -oL curl -sS -o /dev/null \
    -w '%{http_code}\n' --rate 50/s "http://$address:8080/passwd?[1-1000000]"
  wait_for 20 "the first reply of web" test -s "$codes"
  before=$(everything)
  # Four pods and five containers.
  [ "$(wc -l <<<"$before")" -ge 9 ] || fail "not everything is listed: $before" || return
  out=$("$@" 2>&1) || fail "$*: $out" || return
  echo "$out" | sed -n 's/^\(.*: done after .*\)/# \1/p' >&3
  wait_for 20 "the node to be ready" is_ready
  lacks "the statuses of the node" False "$(cat "$BATS_TEST_TMPDIR/beats")" || return
  same "pods and containers" "$before" "$(everything)" || return
  goes_on runtime || return
  kill "$BACKGROUND"
  equal "replies of web" "200" "$(sort -u "$codes")"
  echo "# not Ready for at most $(longest_silence) s; $(wc -l <"$codes") requests" >&3
}

# A command that writes lines without an end.
LOOP=(sh -c 'while :; do date; sleep 0.2; done')

# stream NAME COMMAND...: starts a command that writes lines without an end.
stream() {
  in_background "$BATS_TEST_TMPDIR/$1.lines" "${@:2}"
  wait_for 20 "the first line of $1" test -s "$BATS_TEST_TMPDIR/$1.lines"
}

# goes_on NAME: waits for a new line of a stream.
goes_on() {
  local file=$BATS_TEST_TMPDIR/$1.lines
  wait_for 10 "a line of the stream $1" has_lines "$file" $(($(wc -l <"$file") + 2))
}

has_lines() {
  [ "$(wc -l <"$1")" -ge "$2" ]
}

# restart_kubelet: restarts the kubelet and waits until it reports its node.
restart_kubelet() {
  local beats=$BATS_TEST_TMPDIR/beats
  in_node systemctl restart kubelet && wait_for 60 "a status of the node" has_lines "$beats" $(($(wc -l <"$beats") + 3))
}

processes() {
  in_node systemctl show --value --property=MainPID "$@"
}

@test "a restart of the kubelet without criswitch, to compare with" {
  disturb_nothing restart_kubelet
}

@test "a plan changes nothing" {
  local code=0
  node plan --spec /root/spec.toml >/dev/null || code=$?
  equal "the exit status" 2 "$code"
  same "the files" "$(kept files)" "$(files_of_node)"
}

@test "a kubelet that does not start with criswitch is started again without it" {
  touch "$(root)/run/no-criswitch"
  fails_and_is_undone() {
    local out
    ! out=$(node apply --spec /root/spec.toml 2>&1) || fail "it does not fail" || return
    has "apply" "step restart has failed, and all changes are undone" "$out"
    has "status" "failed" "$(node status)"
  }
  disturb_nothing fails_and_is_undone
  rm "$(root)/run/no-criswitch"
  same "the files" "$(kept files)" "$(files_of_node)"
}

@test "an apply that is killed while it tries a handler leaves no pod and no file" {
  in_background "$BATS_TEST_TMPDIR/apply" nsenter --target="$(cat "$DIR/node/pid")" --mount --pid --net --root --wdns=/ \
    /root/criswitch node apply --spec /root/spec.toml
  wait_for 60 "a pod of a try" is_tried 1
  in_node systemctl kill --signal=KILL criswitch-apply.service
  wait_for 60 "the end of the undo" is_undone
  same "the files" "$(kept files)" "$(files_of_node)"
  for n in 1 2; do
    ! is_tried "$n" || fail "a pod is left"
  done
}

# is_tried N: succeeds when containerd N has a pod of a try; a condition for wait_for.
is_tried() {
  crictl_at "$1" pods --namespace criswitch-try -q | grep .
}

# is_undone: succeeds when no change is under way; a condition for wait_for.
is_undone() {
  node status | grep -E '^(failed|notInstalled|undone)' && ! in_node systemctl is-active criswitch-apply.service
}

@test "an apply that is killed between two of its changes leaves the node as before" {
  local before moment cuts=0
  before=$(everything)
  # The first moments are before any change.
  for ((moment = 30; ; moment += STRIDE)); do
    ! node apply --spec /root/spec.toml --end-at "$moment" >"$BATS_TEST_TMPDIR/apply" 2>&1 || break
    grep -q 'ended with the result signal 9' "$BATS_TEST_TMPDIR/apply" || fail "$(cat "$BATS_TEST_TMPDIR/apply")"
    same "the files after the moment $moment" "$(kept files)" "$(files_of_node)"
    cuts=$((cuts + 1))
  done
  wait_for 20 "the node to be ready" is_ready
  same "pods and containers" "$before" "$(everything)"
  echo "# $cuts cuts, up to moment $moment" >&3
  [ "$cuts" -gt 0 ] || fail "no apply was killed"
  node uninstall >/dev/null
}

@test "apply installs criswitch" {
  disturb_nothing node apply --spec /root/spec.toml
  node status --ready
}

@test "a second apply changes nothing" {
  local before
  before=$(processes kubelet criswitch)
  has "apply" "nothing would change" "$(node apply --spec /root/spec.toml)"
  equal "the processes" "$before" "$(processes kubelet criswitch)"
}

@test "a pod that ends on its own while the kubelet restarts is not lost" {
  in_node /root/criswitch node undo >/dev/null
  # shellcheck disable=SC2016 # The shell of the pod expands these.
  create_pod job "" '.spec.restartPolicy = "Never" | .spec.hostNetwork = true | .spec.containers[0].command =
    ["sh", "-c", "while wget -q -O /dev/null http://127.0.0.1:10248/healthz; do sleep 0.1; done"]'
  wait_for 60 "the pod job" pod_is job "$RUNS"
  wait_for 20 "a plan that rejects nothing" would_change
  node apply --spec /root/spec.toml >/dev/null
  wait_for 20 "the end of the job" pod_is job '.status.phase == "Succeeded"'
  delete_pod job
}

@test "an upgrade restarts criswitch only, and streams through the kubelet go on" {
  processes kubelet | keep_as kubelet
  create_pod boxed crun
  wait_for 60 "a pod of the other containerd" pod_is boxed "$RUNS"
  equal "pods of the other containerd" 1 "$(pods_at 1 | wc -l)"
  specify 2
  disturb_nothing node apply --spec /root/spec.toml
  goes_on exec
  goes_on logs
  equal "the generation" 2 "$(node status -o json | jq .generation)"
  equal "the kubelet" "$(kept kubelet)" "$(processes kubelet)"
}

@test "an undo of the upgrade restarts criswitch only, and streams through the kubelet go on" {
  disturb_nothing node undo
  goes_on exec
  goes_on logs
  node status --ready
  equal "the generation" 1 "$(node status -o json | jq .generation)"
  equal "the kubelet" "$(kept kubelet)" "$(processes kubelet)"
}

@test "uninstall waits for the pods of the other containerd, and takes everything back" {
  local out
  ! out=$(node uninstall 2>&1) || fail "it does not fail"
  has "uninstall" "suite/boxed: runs on /run/containerd-1.sock" "$out"
  delete_pod boxed
  wait_for 60 "the end of the pod" pod_gone boxed
  disturb_nothing node uninstall
  same "the files" "$(kept files)" "$(files_of_node)"
}
