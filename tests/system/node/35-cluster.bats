# The chart sets up the three nodes of a cluster with the commands of docs/rollout.md, and takes everything back. The
# scheduler places pods of the chart's RuntimeClasses by the labels of the nodes.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/kubelet.bash
load node.bash
load ../runtimes/checks/cluster.bash

PAGE=$TOP/docs/rollout.md
NODES=(1 2 3)

setup_file() {
  local n boots=()
  start_link
  start_cluster
  start_scheduler
  start_controllers --controllers garbage-collector-controller
  copy_chart
  image_of_criswitch
  for n in "${NODES[@]}"; do
    at "$n" add_node &
    boots+=($!)
  done
  for n in "${boots[@]}"; do
    wait "$n"
  done
}

teardown() {
  end_background
}

teardown_file() {
  end_node
}

# add_node: boots the node, with a pod that runs from now on, and with the directory of node-feature-discovery.
add_node() {
  [ -z "$SUFFIX" ] || start_link || return
  start_node_of_systemd && import_criswitch && create_pod "first$SUFFIX" "" ".spec.nodeName = \"$NAME\"" &&
    wait_for 90 "the first pod" pod_is "first$SUFFIX" "$RUNS" &&
    mkdir -p "$(root)/etc/kubernetes/node-feature-discovery/features.d" && keep_node before
}

# keep_node WHEN: keeps the files, the pods and containers, and the processes of the node.
keep_node() {
  files_of_node | keep_as "files-$1$SUFFIX" && everything | keep_as "pods-$1$SUFFIX" &&
    processes_of_node | keep_as "processes-$1$SUFFIX"
}

# same_files WHEN / same_pods WHEN / same_processes WHEN: compares the node with what keep_node has kept.
same_files() {
  same "the files of $NAME" "$(kept "files-$1$SUFFIX")" "$(files_of_node)"
}

same_pods() {
  same "pods and containers of $NAME" "$(kept "pods-$1$SUFFIX")" "$(everything)"
}

same_processes() {
  same "the processes of $NAME" "$(kept "processes-$1$SUFFIX")" "$(processes_of_node)"
}

same_node() {
  same_files "$1" && same_pods "$1" && same_processes "$1"
}

processes_of_node() {
  in_node systemctl show --value --property=MainPID kubelet criswitch
}

# on_each COMMAND...: runs the command with each node selected.
on_each() {
  local n
  for n in "${NODES[@]}"; do
    at "$n" "$@" || fail "node $n: $*" || return
  done
}

# values GENERATION MODE HANDLER: writes the page's values, with this mode of the pool `canary`, labels, and RuntimeClasses.
# The containerds are those of the nodes; the handler `old` is HANDLER of the first one. The disks of the nodes are in
# memory, and so are the pods' copies. The kubelet of the tests has no version.
values() {
  mkdir -p "$DIR/page"
  sed -n '/^        pools:/,/^$/s/^        //p' "$PAGE" | sed \
    -e 's|"/run/containerd/containerd.sock"|"/run/containerd-2.sock"|' \
    -e 's|"/run/gvisor/containerd.sock"|"/run/containerd-2.sock"|' \
    -e "s|^\( *\)gvisor = .*|&\n\1old = { socket = \"/run/containerd-1.sock\", handler = \"$3\" }\n\1[node]|" \
    -e 's|^\( *\)default_handler = |\1labels_file = "/etc/kubernetes/node-feature-discovery/features.d/criswitch"\n&|' \
    -e "s|^  canary:\$|&\n    mode: $2|" |
    sed "s|^\( *\)\[node\]|&\n\1generation = $1\n\1accept = [\"kubelet-version\"]\n\1kubelet_timeout = \"2m\"|" >"$DIR/page/values.yaml"
  cat >>"$DIR/page/values.yaml" <<'END'
resources: {limits: {memory: 256Mi}}
test: {handler: runc}
runtimeClasses:
  gvisor:
    handler: gvisor
    overhead: {podFixed: {cpu: 16m, memory: 89Mi}}
    scheduling: {nodeSelector: {criswitch.io/handler.gvisor: "true"}}
  old: {handler: old, scheduling: {nodeSelector: {criswitch.io/handler.old: "true"}}}
  vm: {handler: kata, scheduling: {nodeSelector: {criswitch.io/handler.kata: "true"}}}
  unknown: {handler: nosuch}
END
}

# release VERB: installs or upgrades the release with the last values.
release() {
  helm_at_cluster 4 "$1" criswitch "$CHART" -n criswitch -f "$DIR/page/values.yaml" >/dev/null
}

# uninstall_release: removes the release. The garbage collector removes its pods.
uninstall_release() {
  helm_at_cluster 4 uninstall criswitch -n criswitch >/dev/null
  wait_for 120 "the end of the pods" pool_is ""
}

# run_page: runs the commands on standard input as a user of the page does, and prints their output.
run_page() {
  local line pod
  while read -r line; do
    pod=$(kubectl_at_cluster get pods -n criswitch -l criswitch.io/pool -o name | tail -n 1)
    line=${line%%  #*} line=${line//NODE/node node-2 node-3} line=${line//POD/${pod#pod/}}
    line=${line//VERSION/$(version_of_chart)}
    echo "\$ $line"
    (cd "$DIR/page" && KUBECONFIG=$DIR/cluster/kubeconfig HELM_CACHE_HOME=$DIR/helm HELM_CONFIG_HOME=$DIR/helm \
      HELM_DATA_HOME=$DIR/helm timeout 480 bash -c "${line/#helm/helm4}" </dev/null 2>&1) || return
  done
}

# commands_of_page: prints the commands in the order of the page.
commands_of_page() {
  sed -n 's/^ \{4,\}\(\(kubectl\|helm\) .*\)/\1/p' "$PAGE"
}

# printed_by COMMAND: prints the output of the page's commands that begin with COMMAND.
printed_by() {
  awk -v command="\$ $1" '/^\$ / {prints = index($0, command) == 1} prints' "$DIR/page/said"
}

# pods_of_pool: prints a line for each pod of the pool: its node, whether it is ready, its mode and its name.
pods_of_pool() {
  kubectl_at_cluster get pods -n criswitch -l criswitch.io/pool=canary -o json | jq -r '.items[] |
    [.spec.nodeName, any(.status.containerStatuses[]?; .ready), (.spec.containers[].args[2] | ltrimstr("--mode=")),
    .metadata.name] | join(" ")' | sort
}

# pool_is STATE...: succeeds when the pool has a pod in each of these states, as `node true plan`, and no other; a
# condition for wait_for.
pool_is() {
  local seen
  seen=$(pods_of_pool) || return
  echo "$seen"
  [ "$(cut -d ' ' -f 1-3 <<<"$seen")" = "$(printf '%s\n' "$@" | sort)" ]
}

# whole_pool_is STATE: succeeds when each node has a pod in this state; a condition for wait_for.
whole_pool_is() {
  pool_is "node $1" "node-2 $1" "node-3 $1"
}

# nodes_of_pods STATE: prints the numbers of the nodes with a pod in this state; fails if there is none.
nodes_of_pods() {
  pods_of_pool | awk -v state="$1" '$2 " " $3 == state {print $1 == "node" ? 1 : substr($1, 6); any = 1} END {exit !any}'
}

# event_says REASON WORDS: succeeds when an event with the reason has the words; a condition for wait_for.
event_says() {
  kubectl_at_cluster get events -A --field-selector "reason=$1" -o json | jq -r '.items[] |
    "\(.involvedObject.name): \(.message)"' | grep -F "$2"
}

# change_times: prints when the last change of the node began and ended, in seconds.
change_times() {
  local journal
  journal=$(root)/var/lib/criswitch/node/journal
  echo "$(jq -rs '[.[] | objects | .begin // empty] | last.at | sub("\\.[0-9]+"; "") | fromdateiso8601' "$journal")" \
    "$(stat -c %Y "$journal")"
}

# one_after_another N...: checks that the last changes of these nodes do not overlap.
one_after_another() {
  local n times=
  for n in "$@"; do
    times+=$(at "$n" change_times)$'\n' || return
  done
  times=$(sort -n <<<"${times%?}")
  echo "# changes from and to: $(paste -sd, <<<"$times")" >&3
  awk 'NF < 2 || $2 < $1 || $1 < last {exit 1} {last = $2}' <<<"$times" || fail "changes overlap: $times"
}

@test "helm install changes nothing on three nodes, and shows the verdict of each" {
  local said
  values 1 plan crun
  (cd "$DIR/page" && helm_at_cluster 4 package "$CHART" >/dev/null &&
    mv criswitch-*.tgz "criswitch-$(version_of_chart)-chart.tgz")
  said=$(commands_of_page | sed '/^helm upgrade/,$d' | run_page) || fail "$said"
  echo "$said"
  equal "the commands" "helm kubectl kubectl kubectl" "$(sed -n 's/^\$ \([a-z]*\) .*/\1/p' <<<"$said" | sort | xargs)"
  whole_pool_is "true plan"
  equal "the nodes with a verdict" 3 "$(grep -o '^\[pod/.*\] would change: ' <<<"$said" | sort -u | wc -l)"
  on_each same_node before
}

@test "a value breaks the second node: the node is undone and Ready, its pod says why, and the third is untouched" {
  local first second third
  values 2 install crun
  release upgrade
  wait_for 60 "the first node" nodes_of_pods "false install"
  first=$(nodes_of_pods "false install")
  # From now on, no other node can run crun.
  for second in "${NODES[@]}"; do
    [ "$second" = "$first" ] || at "$second" in_node mount --bind /usr/bin/false /usr/bin/crun
  done
  wait_for 240 "the reason in an event" event_says Unhealthy "step try has failed" || fail "$(logs_of_pool)"
  second=$(nodes_of_pods "false install")
  third=$(nodes_of_pods "true plan")
  echo "# the nodes $first, $second, $third" >&3
  equal "the nodes" 6 $((first + second + third))
  equal "the first node" "$first" "$(nodes_of_pods "true install")"
  has "the log" "and all changes are undone" "$(kubectl_at_cluster logs -n criswitch "$(at "$second" pod_of_node)")"
  has "the event" "$(at "$second" pod_of_node): " "$(event_says Unhealthy "step try has failed")"
  has "the pods" " 0/1 " "$(kubectl_at_cluster get pods -n criswitch | grep "^$(at "$second" pod_of_node)")"
  at "$first" node status --ready
  for n in "$second" "$third"; do
    at "$n" is_ready
    at "$n" same_node before
  done
  has "the second node" failed "$(at "$second" node status)"
  has "the third node" notInstalled "$(at "$third" node status)"
  one_after_another "$first" "$second"
}

# logs_of_pool: prints the end of the log of each pod of the pool.
logs_of_pool() {
  kubectl_at_cluster logs -n criswitch -l criswitch.io/pool=canary --prefix --tail=20
}

# pod_of_node: prints the name of the pod of the pool on the node.
pod_of_node() {
  pods_of_pool | awk -v node="$NAME" '$1 == node {print $4}'
}

@test "once the value is repaired, the rollout goes on node by node, and no container restarts" {
  values 3 install runc
  watch_heartbeats
  commands_of_page | sed -n '/^helm upgrade/,$p' | run_page >"$DIR/page/said" ||
    fail "$(cat "$DIR/page/said"; kubectl_at_cluster logs -n criswitch criswitch-canary-test)"
  has "the try" "host kernel" "$(printed_by "helm test")"
  # Helm does not remove the pod of the test.
  kubectl_at_cluster delete pod -n criswitch criswitch-canary-test
  whole_pool_is "true install"
  on_each node status --ready
  one_after_another "${NODES[@]}"
  for n in "${NODES[@]}"; do
    equal "the generation" 3 "$(at "$n" node status -o json | jq .generation)"
  done
  on_each same_pods before
  lacks "the statuses of the nodes" False "$(cat "$BATS_TEST_TMPDIR/beats")"
  has "the pods" "criswitch-canary-" "$(printed_by "kubectl get pods")"
  has "the events" "step try has failed" "$(printed_by "kubectl get events")"
  has "the log" "installed; criswitch node undo undoes it" "$(printed_by "kubectl logs")"
  has "the manifests" "name: criswitch-others" "$(cat "$DIR/page/criswitch.yaml")"
}

# plugin ARGUMENT...: runs the plug-in of kubectl.
plugin() {
  KUBECONFIG=$DIR/cluster/kubeconfig "$TOP/deploy/kubectl/kubectl-criswitch" "$@"
}

# seen_by_plugin CODE WORDS: succeeds when the status of all nodes has this exit code and these words; a condition for
# wait_for.
seen_by_plugin() {
  local code=0
  plugin status || code=$?
  [ "$code" = "$1" ] && plugin status 2>&1 | grep -F "$2"
}

@test "kubectl criswitch shows the status, the pods, an explanation and an archive of all three nodes" {
  local said n
  wait_for 60 "three nodes that are served" seen_by_plugin 0 "serving: "
  said=$(plugin status)
  equal "the nodes" "==> node <== ==> node-2 <== ==> node-3 <==" "$(grep '^==>' <<<"$said" | xargs)"
  equal "served nodes" 3 "$(grep -c '^serving: ' <<<"$said")"
  said=$(plugin pods)
  for n in "${NODES[@]}"; do
    has "the pods" "suite/first$(at "$n" suffix)" "$said"
  done
  equal "the backends of the second node" "old runc" \
    "$(plugin status --node node-2 -o json | jq -r '.backends | map(.name) | sort | join(" ")')"
  jq -n '{apiVersion: "v1", kind: "Pod", metadata: {name: "box"}, spec: {runtimeClassName: "unknown",
    containers: [{name: "main", image: "image"}]}}' >"$BATS_TEST_TMPDIR/pod"
  run plugin explain --node node-3 -f "$BATS_TEST_TMPDIR/pod"
  equal "the exit code" 1 "$status"
  has "the handler of a class of the cluster" "RuntimeClass unknown, handler nosuch, which this node does not have" "$output"
  (cd "$BATS_TEST_TMPDIR" && plugin bundle)
  for n in "${NODES[@]}"; do
    tar tzf "$BATS_TEST_TMPDIR/criswitch-node$(at "$n" suffix).tar.gz" | grep -q status
  done

  at 2 in_node systemctl stop containerd@1
  wait_for 60 "the backend that is down" seen_by_plugin 1 "degraded: "
  said=$(plugin status || true)
  equal "served nodes" 2 "$(grep -c '^serving: ' <<<"$said")"
  at 2 in_node systemctl start containerd@1
  wait_for 60 "three nodes that are served" seen_by_plugin 0 "serving: "
  run plugin status --node nosuch
  equal "the exit code" 69 "$status"
  has "the error" "kubectl criswitch: node nosuch: " "$output"
}

suffix() {
  echo "$SUFFIX"
}

@test "pods of the RuntimeClasses of the chart run where the labels of the nodes are" {
  local class free='del(.spec.nodeName)'
  for class in old gvisor vm; do
    create_pod "$class" "$class" "$free"
  done
  wait_for 60 "the reason why no node fits" fits_no_node old
  start_discovery
  on_each start_worker
  create_pod plain "" "$free"
  create_pod unknown unknown "$free"
  for class in old gvisor plain; do
    wait_for 90 "the pod $class" pod_is "$class" "$RUNS"
  done
  equal "the overhead" '{"cpu":"16m","memory":"89Mi"}' "$(api api/v1/namespaces/suite/pods/gvisor | jq -c .spec.overhead)"
  runs_at old 1
  runs_at gvisor 2
  runs_at plain 2
  has "the kernel of gVisor" gvisor "$(kubectl_at_cluster exec -n suite gvisor -- uname -r)"
  wait_for 60 "the reason why no node fits" fits_no_node vm
  has "the event" "didn't match Pod's node affinity/selector" "$(event_says FailedScheduling "vm: ")"
  pod_is vm '.status.phase == "Pending"'
  wait_for 60 "the error of criswitch" event_says FailedCreatePodSandBox \
    'no runtime for "nosuch" is configured; criswitch has handlers: gvisor, old, runc'
  delete_pod vm
  delete_pod unknown
}

# start_worker: starts the worker of node-feature-discovery in the node.
start_worker() {
  start_program "nfd-worker$SUFFIX" in_node env "NODE_NAME=$NAME" KUBERNETES_NAMESPACE=suite /opt/partners/nfd-worker \
    -kubeconfig /etc/kubernetes/kubelet.conf "${NFD_FLAGS[@]}"
}

# runs_at POD N: checks that containerd N of the pod's node runs the pod.
runs_at() {
  local node
  node=$(api "api/v1/namespaces/suite/pods/$1" | jq -r .spec.nodeName)
  equal "$1 on $node" 1 "$(crictl_at "$2${node#node}" pods -q --state ready --name "^$1\$" | wc -l)"
}

@test "pods of the chart that are deleted or evicted change nothing on their nodes" {
  local deleted evicted
  on_each keep_node installed
  deleted=$(at 1 pod_of_node) evicted=$(at 2 pod_of_node)
  kubectl_at_cluster delete pod -n criswitch "$deleted" --wait=false
  api "api/v1/namespaces/criswitch/pods/$evicted/eviction" POST <<<"{\"metadata\": {\"name\": \"$evicted\"}}"
  wait_for 60 "new pods" has_no_pods_of "$deleted"$'\n'"$evicted"
  wait_for 90 "the pods" whole_pool_is "true install"
  on_each same_node installed
}

# has_no_pods_of NAMES: succeeds when the pool has none of these pods; a condition for wait_for.
has_no_pods_of() {
  ! pods_of_pool | grep -F "$1"
}

@test "a release that is deleted in the middle of a rollout leaves each node as before or as installed" {
  local n state states=
  delete_pod old
  wait_for 60 "the end of the pod" pod_gone old
  on_each keep_node installed
  values 3 uninstall runc
  release upgrade
  wait_for 120 "the first node" nodes_of_pods "true uninstall"
  uninstall_release
  for n in "${NODES[@]}"; do
    wait_for 60 "the end of a change" at "$n" has_ended
    state=$(at "$n" node status | grep -o -m 1 '^[A-Za-z]*')
    states+="$state "
    if [ "$state" = installed ]; then
      at "$n" same_node installed
    else
      at "$n" same_files before
      at "$n" same_pods installed
    fi
  done
  echo "# $states" >&3
  has "the nodes" installed "$states"
  # Ask one of the nodes where criswitch is still installed. It has no pod of the chart any more.
  for n in "${NODES[@]}"; do
    [ "$(at "$n" node status | grep -o -m 1 '^[A-Za-z]*')" != installed ] || break
  done
  has "the status" "serving: " "$(plugin status --node "node$(at "$n" suffix)" --image registry.test/busybox:1)"
  wait_for 60 "the end of the pod of kubectl debug" has_no_debugger
  [ "$states" != "installed installed installed " ] || fail "no node has changed"
}

# has_no_debugger: succeeds when no pod of kubectl debug exists; a condition for wait_for.
has_no_debugger() {
  [ -z "$(kubectl_at_cluster get pods -n default -o name)" ]
}

@test "the mode uninstall, and then helm uninstall, leave every file and label of the nodes as before" {
  release install
  wait_for 240 "the nodes" whole_pool_is "true uninstall"
  uninstall_release
  on_each same_files before
  on_each same_pods installed
  on_each has_no_rest
}

# has_no_rest: checks that the node has no copy of the program and no label of its handlers.
has_no_rest() {
  equal "copies of the program" "" "$(find "$(root)/var/lib/criswitch/node" -name criswitch)" &&
    wait_for 60 "the end of the labels" node_lacks criswitch.io/handler.gvisor "$NAME"
}

# play STATE: runs the Ansible role on one node after another, and prints the numbers of each node's tasks. Instead of ssh,
# the connection enters the node.
play() {
  cat >"$BATS_TEST_TMPDIR/enter" <<END
#!/bin/bash
# Ansible asks whether ssh has an option.
[ \$# -gt 2 ] || exit 0
node=\${*: -2:1}
exec nsenter --target="\$(cat "$DIR/\$node/pid")" --mount --pid --cgroup --net --root --wdns=/ \
  env -i HOME=/root PATH=/usr/bin:/usr/sbin sh -c "\${*: -1}"
END
  chmod +x "$BATS_TEST_TMPDIR/enter"
  jq -n --arg state "$1" --rawfile specification "$(root)/root/spec.toml" --arg programs "$(dirname "$CRISWITCH")" \
    --arg ssh "$BATS_TEST_TMPDIR/enter" '[{hosts: "all", gather_facts: false, serial: 1, roles: ["criswitch"], vars: {
    ansible_ssh_executable: $ssh, ansible_ssh_transfer_method: "piped", ansible_python_interpreter: "/usr/bin/python3",
    criswitch_state: $state, criswitch_specification: $specification, criswitch_programs: $programs,
    criswitch_folder: "/root/ansible"}}]' \
    >"$BATS_TEST_TMPDIR/play.json"
  ANSIBLE_ROLES_PATH=$TOP/deploy/ansible ANSIBLE_HOME=$BATS_TEST_TMPDIR/ansible ansible-playbook \
    --inventory node,node-2,node-3 "$BATS_TEST_TMPDIR/play.json" </dev/null >"$BATS_TEST_TMPDIR/said" 2>&1 ||
    fail "$(cat "$BATS_TEST_TMPDIR/said")" || return
  sed -n 's/^\(node[-0-9]*\) .*: ok=[0-9]* *\(changed=[0-9]*\) .*/\1 \2/p' "$BATS_TEST_TMPDIR/said" | xargs
}

@test "the Ansible role installs criswitch on three nodes, one after another, and takes everything back" {
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || skip "Ansible is in the nightly lane"
  command -v ansible-playbook >/dev/null ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends ansible-core; }
  on_each keep_node ansible
  specify 1
  equal "the changes" "node changed=1 node-2 changed=1 node-3 changed=1" "$(play installed)"
  on_each node status --ready
  one_after_another "${NODES[@]}"
  on_each same_pods ansible
  equal "the changes" "node changed=0 node-2 changed=0 node-3 changed=0" "$(play installed)"
  equal "the changes" "node changed=1 node-2 changed=1 node-3 changed=1" "$(play uninstalled)"
  on_each in_node rm -r /root/ansible
  rm "$(root)/root/spec.toml"
  on_each same_files ansible
  on_each same_pods ansible
}
