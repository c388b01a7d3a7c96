# Installs criswitch on a real node, upgrades it, and uninstalls it, while the pods of the node run.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/kubelet.bash
load node.bash
load ../runtimes/checks/cluster.bash

setup_file() {
  start_link
  start_cluster
  start_node_of_systemd
  # 28 pods of the API server, and two static pods.
  for copy in "" -2 -3 -4; do
    sed "s/^\(metadata: *\|  \){ name: \([a-z]*\), namespace/\1{ name: \2$copy, namespace/" "$NODE/pods.yaml"
    echo ---
  done | kubectl_at_cluster apply -f - >/dev/null
  for name in fixed firm; do
    render static-pod.yaml "$(root)/etc/kubernetes/manifests/$name.yaml" "NAME=$name"
  done
  wait_for 180 "30 pods" are_ready 30
  specify 1
  # A plan rejects a node whose pods have just started.
  wait_for 60 "a plan that rejects nothing" would_change
  files_of_node | keep_as files
}

teardown() {
  end_background
}

teardown_file() {
  end_node
}

# are_ready NUMBER: succeeds when NUMBER pods exist and each is Ready; a condition for wait_for.
are_ready() {
  local seen
  seen=$(api api/v1/namespaces/suite/pods | jq -r '.items[] |
    "\(.metadata.name) \([.status.conditions[]? | select(.type == "Ready")][0].status)"') || return
  echo "$seen"
  [ "$(grep -c ' True$' <<<"$seen")" = "$1" ] && [ "$(wc -l <<<"$seen")" = "$1" ]
}

# disturb_nothing COMMAND...: runs the command. No pod or container may change, the pod `web` must answer each request,
# a stream from a runtime must go on, and the node must stay Ready.
disturb_nothing() {
  local codes=$BATS_TEST_TMPDIR/codes address before out
  address=$(api api/v1/namespaces/suite/pods/web | jq -r .status.podIP)
  watch_heartbeats
  stream runtime nsenter --target="$(cat "$DIR/node/pid")" --net crictl --config "$DIR/crictl-2.yaml" exec \
    "$(crictl_at 2 ps -q --name writer | head -n 1)" "${LOOP[@]}"
  stream exec kubectl --kubeconfig "$DIR/cluster/kubeconfig" -n suite exec web -c main -- "${LOOP[@]}"
  stream logs kubectl --kubeconfig "$DIR/cluster/kubeconfig" -n suite logs --tail=1 -f web -c writer
  in_background "$codes" nsenter --target="$(cat "$DIR/node/pid")" --net stdbuf -oL curl -sS -o /dev/null \
    -w '%{http_code}\n' --rate 50/s "http://$address:8080/passwd?[1-1000000]"
  wait_for 60 "the first reply of web" test -s "$codes"
  before=$(everything)
  # 30 pods and 38 containers.
  [ "$(wc -l <<<"$before")" -ge 68 ] || fail "not everything is listed: $before" || return
  out=$("$@" 2>&1) || fail "$*: $out" || return
  echo "$out" | sed -n 's/^\(.*: done after .*\)/# \1/p' >&3
  wait_for 60 "the node to be ready" is_ready
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
  wait_for 60 "the first line of $1" test -s "$BATS_TEST_TMPDIR/$1.lines"
}

# goes_on NAME: waits for a new line of a stream.
goes_on() {
  local file=$BATS_TEST_TMPDIR/$1.lines
  wait_for 60 "a line of the stream $1" has_lines "$file" $(($(wc -l <"$file") + 2))
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
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || skip "only the nightly lane compares"
  disturb_nothing restart_kubelet
}

@test "a plan changes nothing" {
  local code=0 shown
  node plan --spec /root/spec.toml >/dev/null || code=$?
  equal "the exit status" 2 "$code"
  code=0
  # The plan must be the same if all file systems are read-only.
  # shellcheck disable=SC2016 # The inner shell expands these.
  shown=$(in_node unshare --mount bash -c 'while read -r _ at _; do mount -o remount,bind,ro "$at"; done </proc/self/mounts
    for at in /{etc,opt,root,run,var}; do ! touch "$at/write" || exit 9; done
    exec /root/criswitch node plan --spec /root/spec.toml' 2>/dev/null) || code=$?
  equal "the exit status" 2 "$code"
  has "the plan" "would change: " "$shown"
  has "the plan" "note containerd-state: " "$shown"
  same "the files" "$(kept files)" "$(files_of_node)"
}

@test "a kubelet that does not start with criswitch is started again without it" {
  touch "$(root)/run/no-criswitch"
  sed -i 's/^kubelet_timeout = .*/kubelet_timeout = "20s"/' "$(root)/root/spec.toml"
  fails_and_is_undone() {
    local out
    ! out=$(node apply --spec /root/spec.toml 2>&1) || fail "it does not fail" || return
    has "apply" "step restart has failed, and all changes are undone" "$out"
    has "status" "failed" "$(node status)"
  }
  disturb_nothing fails_and_is_undone
  rm "$(root)/run/no-criswitch"
  specify 1
  same "the files" "$(kept files)" "$(files_of_node)"
}

@test "an apply that is killed while it tries a handler leaves no pod and no file" {
  in_background "$BATS_TEST_TMPDIR/apply" nsenter --target="$(cat "$DIR/node/pid")" --mount --pid --net --root --wdns=/ \
    /root/criswitch node apply --spec /root/spec.toml
  wait_for 60 "a pod of a try" is_tried 1
  in_node systemctl kill --signal=KILL "$APPLY"
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
  node status | grep -E '^(failed|notInstalled|undone)' && has_ended
}

@test "apply installs criswitch" {
  disturb_nothing node apply --spec /root/spec.toml
  node status --ready
  has "the metrics" criswitch_build_info "$(in_node curl -sSf --max-time 60 http://127.0.0.1:9199/metrics)"
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
  wait_for 60 "a plan that rejects nothing" would_change
  node apply --spec /root/spec.toml >/dev/null
  wait_for 60 "the end of the job" pod_is job '.status.phase == "Succeeded"'
  delete_pod job
}

@test "an upgrade restarts criswitch only, and streams through the kubelet go on" {
  local program
  processes kubelet | keep_as kubelet
  create_pod boxed crun
  wait_for 60 "a pod of the other containerd" pod_is boxed "$RUNS"
  equal "pods of the other containerd" 1 "$(pods_at 1 | wc -l)"
  specify 2
  # Programs of the next version, whose number has as many digits.
  mkdir "$(root)/root/next"
  for program in criswitch criswitchd; do
    LC_ALL=C sed "s/${OLD//./\\.}/$NEW/g" "$(root)/root/$program" >"$(root)/root/next/$program"
    chmod +x "$(root)/root/next/$program"
  done
  disturb_nothing in_node /root/next/criswitch node apply --spec /root/spec.toml
  only_criswitch_changed 2 "$NEW"
}

@test "a downgrade restarts criswitch only, and streams through the kubelet go on" {
  specify 3
  disturb_nothing node apply --spec /root/spec.toml
  only_criswitch_changed 3 "$OLD"
}

@test "an undo of the downgrade restarts criswitch only, and streams through the kubelet go on" {
  disturb_nothing node undo
  only_criswitch_changed 2 "$NEW"
  node status --ready
}

OLD=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$TOP/Cargo.toml" | head -n 1)
NEW=${OLD%?}$(((${OLD: -1} + 1) % 10))

# only_criswitch_changed GENERATION VERSION: checks the generation, the version that runs, the kubelet and its streams.
only_criswitch_changed() {
  goes_on exec && goes_on logs || return
  equal "the generation" "$1" "$(node status -o json | jq .generation)" || return
  equal "the version" "/opt/criswitch/$2/criswitchd" \
    "$(in_node readlink "/proc/$(processes criswitch)/exe")" || return
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
  equal "the socket of the metrics" inactive "$(in_node systemctl is-active criswitch-metrics.socket)"
  [ "$(kept kubelet)" != "$(processes kubelet)" ] || fail "the kubelet still uses criswitch"
}
