# The kubelet of a cluster runs pods on two containerds behind criswitch, while one containerd is down and the kubelet
# and criswitch restart. The scheduler of the cluster finds the handlers by the labels that criswitch writes.

load helpers.bash
load faults.bash
load kubelet.bash
load cluster.bash

# The time that a containerd is down while everything else restarts, in seconds.
AWAY_S=${CRISWITCH_AWAY_S:-25}
# The time that a containerd hangs before the kubelet restarts, and again afterwards, in seconds. A relist of three minutes
# makes a node not ready. From 60 seconds on, the check also waits for the kubelet's garbage collection of images.
HANG_S=${CRISWITCH_HANG_S:-20}

setup_file() {
  rm -rf "$DIR/manifests" "$DIR/cluster.sock.state"
  mkdir -p "$DIR/manifests" "$DIR/features.d"
  have_images
  start_cluster
  api apis/node.k8s.io/v1/runtimeclasses POST <<<'{"metadata": {"name": "gvisor"}, "handler": "gvisor"}' >/dev/null
  start_switch cluster
  start_node
  # publish_at adds images to this copy of the busybox image, and only then copies them to the registry.
  cp -r "$IMAGES/busybox" "$DIR/images"
}

setup() {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=cluster
}

teardown() {
  end_background
  heal
}

teardown_file() {
  # Nothing needs these programs any more, so they are killed.
  end_remaining KILL npd containerd-7 nfd-worker nfd-master scheduler kubelet cluster apiserver etcd
  remove_pods
}

@test "a containerd is down while criswitch and the kubelet restart: the node stays ready, and no container restarts" {
  create_pod boxed boxed
  create_pod plain ""
  for name in boxed plain; do
    wait_for 60 "the pod $name" pod_is "$name" "$RUNS"
  done
  before=$(runs_now)
  watch_node
  end_program KILL containerd-1
  end_program KILL cluster
  start_switch cluster
  stop_kubelet
  start_node
  pods_come_and_go $((SECONDS + AWAY_S))
  is_backend old down
  start_containerd 1
  wait_for 60 "the state ready" is_backend old ready
  come_and_go after boxed
  equal "the containers" "$before" "$(runs_now)"
  never_unready
  remove_all_pods
}

# images_are_collected: checks that the kubelet removes an image that no pod uses from the other containerd. The kubelet
# collects images at its start, and if that fails, five minutes later.
images_are_collected() {
  publish_at 2 unused
  stop_kubelet
  start_node --local-storage-capacity-isolation --image-gc-high-threshold 1 --image-gc-low-threshold 0 \
    --minimum-image-ttl-duration 0s
  wait_for 400 "the removal of an unused image" image_gone 2 registry.test/case:unused || {
    grep -i "garbage" "$DIR/kubelet.log" | tail -5 >&2
    return 1
  }
  stop_kubelet
  start_node
}

# image_gone N IMAGE: succeeds when containerd N does not have the image; a condition for wait_for.
image_gone() {
  crictl_at "$1" images -o json | jq -e --arg image "$2" '[.images[].repoTags[]] | index($image) | not'
}

@test "a containerd hangs: the kubelet restarts, other pods start and get images, and no container restarts" {
  local probed='.spec.containers[0].livenessProbe = {exec: {command: ["true"]}, periodSeconds: 2, timeoutSeconds: 5}'
  create_pod boxed boxed "$probed"
  create_pod plain "" "${probed/timeoutSeconds: 5/timeoutSeconds: 60}"
  for name in boxed plain; do
    wait_for 60 "the pod $name" pod_is "$name" "$RUNS"
  done
  # Each kubelet removes old containers of this pod, and asks for the status of all before it removes an image.
  create_pod crashes boxed '.spec.containers[0].command = ["false"]'
  wait_for 90 "a pod that crashes" pod_is crashes "$CRASHED_TWICE"
  crashes=$(restarts_of crashes)
  before=$(runs_now | grep -v "^crashes ")
  watch_node
  signal STOP 1
  pods_come_and_go $((SECONDS + HANG_S))
  stop_kubelet
  start_node
  create_pod pulls "" "$(pulls Always)"
  wait_for 60 "a pod that pulls its image" pod_is pulls "$RUNS"
  pods_come_and_go $((SECONDS + HANG_S))
  delete_pod pulls
  [ "$HANG_S" -lt 60 ] || images_are_collected
  is_backend old unresponsive
  signal CONT 1
  wait_for 60 "the state ready" is_backend old ready
  come_and_go after boxed
  wait_for 60 "the end of the pod" pod_gone pulls
  equal "the containers" "$before" "$(runs_now | grep -v "^crashes ")"
  # The kubelet waits for up to five minutes before it starts the container again.
  wait_for 330 "a further start of the pod that crashes" restarted_since "$crashes"
  never_unready
  remove_all_pods
}

# A jq filter: the container of a pod has ended twice or more, and the kubelet waits before it starts the next one.
CRASHED_TWICE='.status.containerStatuses[0] | .restartCount >= 2 and .state.waiting.reason == "CrashLoopBackOff"'

# restarts_of POD: prints how often the kubelet has restarted the container of a pod.
restarts_of() {
  api "api/v1/namespaces/suite/pods/$1" | jq '.status.containerStatuses[0].restartCount'
}

# restarted_since COUNT: succeeds when the pod `crashes` has restarted more often; a condition for wait_for.
restarted_since() {
  [ "$(restarts_of crashes)" -gt "$1" ]
}

@test "node-feature-discovery reads the labels that criswitch writes, also after a containerd fails and returns" {
  local labels
  wait_for 60 "the labels" in_features boxed
  labels=$(nfd_labels)
  equal "the labels of the worker" "$(grep -v '^#' "$DIR/features.d/criswitch" | LC_ALL=C sort)" "$labels"
  has "the labels" criswitch.io/handler.boxed=true "$labels"
  has "the labels" criswitch.io/handler.runc=true "$labels"
  has "the labels" criswitch.io/backend.old.runtime=containerd "$labels"
  has "the labels" criswitch.io/backend.old.version=1.6.20 "$labels"
  has "the labels" criswitch.io/backend.new.version=2. "$labels"
  end_program KILL containerd-1
  wait_for 60 "the end of the label" not_in_features boxed
  labels=$(nfd_labels)
  has "the labels" criswitch.io/handler.runc=true "$labels"
  lacks "the labels" criswitch.io/handler.boxed "$labels"
  start_containerd 1
  wait_for 60 "the label" in_features boxed
  has "the labels" criswitch.io/handler.boxed=true "$(nfd_labels)"
}

# in_features HANDLER / not_in_features HANDLER: succeeds when the file of features has, or lacks, the label of the
# handler; conditions for wait_for.
in_features() {
  grep -F "criswitch.io/handler.$1=true" "$DIR/features.d/criswitch"
}

not_in_features() {
  ! in_features "$1"
}

# pods_come_and_go END: creates and deletes pods of the running containerd, one after another, until $SECONDS reaches
# END.
pods_come_and_go() {
  local count=0
  while [ "$SECONDS" -lt "$1" ]; do
    come_and_go "passing-$((count += 1))" "" || return
  done
  echo "# $count pods came and went meanwhile" >&3
}

# come_and_go NAME CLASS: creates a pod, which must start, and deletes it, which must end it.
come_and_go() {
  create_pod "$1" "$2" && wait_for 60 "the pod $1" pod_is "$1" "$RUNS" && delete_pod "$1" &&
    wait_for 60 "the end of the pod $1" pod_gone "$1"
}

@test "pods get their images after the kubelet and then criswitch restarted" {
  images_after "" boxed kubelet cluster
}

@test "pods get their images after criswitch and then the kubelet restarted" {
  images_after boxed "" cluster kubelet
}

# images_after HERE THERE PROGRAM...: publishes images and restarts the programs in this order. Then pods of class HERE
# need images that only THERE's containerd has, and pods of class THERE need images that only HERE's has. The pods
# `never` and `missing` may not pull. The containerd of `never` has its image; the containerd of `missing` does not.
images_after() {
  local here=$1 there=$2
  shift 2
  local always=always-$1 absent=absent-$1 never=never-$1 missing=missing-$1 debug=debug-$1 init=init-$1 late=late-$1
  create_pod "$always" "$here" "$(pulls Always)"
  create_pod "$absent" "$there" "$(pulls IfNotPresent)"
  create_pod "$never" "$here" "$(pulls Never)"
  create_pod "$missing" "$there" "$(pulls Never)"
  create_pod "$debug" "$here"
  create_pod "$init" "$there" ".spec.initContainers = [
    {name: \"first\", image: \"$BUSYBOX\", command: [\"sh\", \"-c\", \"until [ -e /go ]; do sleep 0.1; done\"]},
    {name: \"second\", image: \"registry.test/case:$init\", command: [\"true\"]}]"
  create_pod "$late" "$here" ".spec.containers[0].image = \"registry.test/case:$late\""
  for name in "$always" "$absent" "$never" "$missing" "$debug"; do
    wait_for 60 "the pod $name" pod_is "$name" "$RUNS"
  done
  wait_for 60 "the first init container" pod_is "$init" '.status.initContainerStatuses[0].state.running'
  wait_for 60 "a pod without its container" pod_is "$late" \
    '.status.containerStatuses[0].state.waiting.reason | . == "ErrImagePull" or . == "ImagePullBackOff"'
  equal "sandboxes of $late" 1 "$(crictl_at cluster pods -q --name "^$late\$" | wc -l)"
  for name in "$absent" "$missing" "$init"; do
    publish_at "$(containerd_of "$here")" "$name"
  done
  for name in "$always" "$debug"; do
    publish_at "$(containerd_of "$there")" "$name"
  done
  publish_at "$(containerd_of "$here")" "$never"

  restart "$late" "$(containerd_of "$there")" "$@"

  for name in "$always" "$absent" "$never" "$missing"; do
    patch_pod "$name" "$(image_of containers main "$name")"
  done
  patch_pod "$debug/ephemeralcontainers" "$(image_of ephemeralContainers debug "$debug")"
  # A kubelet that has just started does not know its pods yet.
  wait_for 60 "the first init container's end" end_first "$init"
  for name in "$always" "$absent" "$never"; do
    wait_for 60 "the new image of $name" pod_is "$name" "$RUNS and .status.containerStatuses[0].restartCount == 1"
  done
  wait_for 60 "the ephemeral container" pod_is "$debug" '.status.ephemeralContainerStatuses[0].state.running'
  for name in "$init" "$late"; do
    wait_for 60 "the pod $name" pod_is "$name" "$RUNS"
  done
  wait_for 60 "the reason why $missing waits" pod_is "$missing" \
    '.status.containerStatuses[0].state.waiting.reason == "ErrImageNeverPull"'
  remove_all_pods
}

# end_first POD: lets the init container `first` end. A command in a container that ends may fail although it ran.
end_first() {
  pod_is "$1" '.status.initContainerStatuses[0].state.terminated' || kubelet_says "run/suite/$1/first?cmd=touch%20/go" -X POST
}

# pulls POLICY: the jq filter for a pod with this imagePullPolicy.
pulls() {
  echo ".spec.containers[0].imagePullPolicy = \"$1\""
}

# image_of FIELD CONTAINER TAG: the patch that gives a container this image.
image_of() {
  jq -n --arg field "$1" --arg name "$2" --arg image "registry.test/case:$3" '{spec: {($field):
    [{name: $name, image: $image} + if $field == "containers" then {} else {command: ["sleep", "1000000"]} end]}}'
}

# containerd_of CLASS: prints the number of the containerd that runs pods of this class.
containerd_of() {
  if [ "$1" = boxed ]; then echo 1; else echo 2; fi
}

# publish_at N TAG: publishes an image with a new id in the registry and pulls it into containerd N.
publish_at() {
  local registry
  registry=$(sed -n 's,^server = "http://\(.*\)",\1,p' "$DIR/certs.d/registry.test/hosts.toml")
  umoci config --image "$DIR/images:1" --tag "$2" --config.label "case=$2" &&
    skopeo copy -q --dest-tls-verify=false "oci:$DIR/images:$2" "docker://$registry/case:$2" &&
    crictl_at "$1" pull "registry.test/case:$2" >/dev/null
}

# restart TAG N PROGRAM...: restarts the programs in this order. While the kubelet is down, publishes an image at
# containerd N.
restart() {
  local tag=$1 n=$2 program
  for program in "${@:3}"; do
    end_program TERM "$program" || return
    if [ "$program" = kubelet ]; then
      publish_at "$n" "$tag" && start_node || return
    else
      start_switch "$program" || return
    fi
  done
}

# is_rejected POD REASON: succeeds when the kubelet has rejected the pod for this reason; a condition for
# wait_for.
is_rejected() {
  pod_is "$1" ".status.phase == \"Failed\" and .status.reason == \"$2\""
}

# only_without REASON FILTER OTHER: checks that the kubelet rejects the pod of the filter for the reason in each class,
# and that the pod of the other filter runs in each class.
only_without() {
  local class name
  for class in "" boxed gvisor; do
    name=${class:-plain}
    create_pod "no-$name" "$class" "$2" && create_pod "yes-$name" "$class" "$3" || return
  done
  for name in plain boxed gvisor; do
    wait_for 60 "the rejection of no-$name" is_rejected "no-$name" "$1" &&
      wait_for 60 "the pod yes-$name" pod_is "yes-$name" "$RUNS" || return
  done
  remove_all_pods
}

# has_sysctl NAME VALUE: the jq filter for a pod with this sysctl.
has_sysctl() {
  echo ".spec.securityContext.sysctls = [{name: \"$1\", value: \"$2\"}]"
}

@test "unsafe-sysctls: the kubelet rejects a sysctl that it does not allow, and takes a safe one" {
  only_without SysctlForbidden "$(has_sysctl net.core.somaxconn 1024)" "$(has_sysctl net.ipv4.tcp_syncookies 1)"
}

@test "windows-pods: the kubelet rejects a pod for Windows, and takes one for Linux" {
  only_without PodOSNotSupported '.spec.os.name = "windows"' '.spec.os.name = "linux"'
}

@test "other-architecture: the kubelet rejects a pod for a different architecture" {
  local own
  own=$(api api/v1/nodes/node | jq -r '.metadata.labels["kubernetes.io/arch"]')
  only_without NodeAffinity '.spec.nodeSelector = {"kubernetes.io/arch": "s390x"}' \
    ".spec.nodeSelector = {\"kubernetes.io/arch\": \"$own\"}"
}

@test "supplemental-groups: the kubelet rejects the policy Strict, because one backend does not report the feature" {
  only_without SupplementalGroupsPolicyNotSupported '.spec.securityContext.supplementalGroupsPolicy = "Strict"' \
    '.spec.securityContext.supplementalGroupsPolicy = "Merge"'
}

# not_of_node NAMESPACE SYSCTL VALUE: checks that no pod with this namespace of the node gets the sysctl, and that a pod
# with one of its own gets it. The kubelet of the suite allows only safe sysctls.
not_of_node() {
  local class
  for class in "" boxed gvisor; do
    ! create_pod "no-${class:-plain}" "$class" "$(has_sysctl "$2" "$3") | .spec.$1 = true" 2>"$BATS_TEST_TMPDIR/said" ||
      wait_for 60 "the rejection" is_rejected "no-${class:-plain}" SysctlForbidden || return
    create_pod "yes-${class:-plain}" "$class" "$(has_sysctl "$2" "$3")" || return
    wait_for 60 "the pod yes-${class:-plain}" pod_is "yes-${class:-plain}" "$RUNS" || return
  done
  remove_all_pods
}

@test "host-network-sysctls: no pod sets a sysctl of the network of the node" {
  not_of_node hostNetwork net.ipv4.tcp_syncookies 1
}

@test "host-ipc-sysctls: no pod sets a sysctl of the IPC namespace of the node" {
  not_of_node hostIPC kernel.shm_rmid_forced 0
}

# rejected_by_api WITHOUT WITH: checks that the API server rejects a pod with the first jq filter and takes one with the
# second.
rejected_by_api() {
  ! create_pod bad "" "$1" 2>/dev/null || fail "the API server takes $1" || return
  create_pod good "" "$2" || return
  remove_all_pods
}

@test "unmasked-proc: the API server takes an unmasked /proc only with a user namespace" {
  local unmasked='.spec.containers[0].securityContext.procMount = "Unmasked"'
  rejected_by_api "$unmasked" "$unmasked | .spec.hostUsers = false"
}

@test "host-users-host-fields: the API server takes a namespace of the node only without a user namespace" {
  rejected_by_api '.spec.hostUsers = false | .spec.hostPID = true' '.spec.hostPID = true'
  rejected_by_api '.spec.hostUsers = false | .spec.hostIPC = true' '.spec.hostIPC = true'
}

@test "shared-host-processes: the API server takes shared processes only without those of the node" {
  rejected_by_api '.spec.shareProcessNamespace = true | .spec.hostPID = true' '.spec.shareProcessNamespace = true'
}

@test "privileged-escalation: the API server takes a privileged container only with escalation" {
  local privileged='.spec.containers[0].securityContext.privileged = true'
  rejected_by_api "$privileged | .spec.containers[0].securityContext.allowPrivilegeEscalation = false" "$privileged"
}

@test "node-problem-detector sets the conditions of the node for a stopped containerd, a rejected reload and a lost NRI socket" {
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || skip "node-problem-detector is in the nightly lane"
  start_problem_detector
  wait_for 60 "the condition of ready backends" condition_is CRIBackendsNotReady False CRIBackendsReady ""
  end_program KILL containerd-1
  wait_for 60 "the condition of a stopped backend" condition_is CRIBackendsNotReady True CRIBackendDown \
    "backend old is down"
  wait_for 60 "the event of a stopped backend" event_of_detector Warning CRIBackendDown "backend old is down"
  echo 'nosuch = 1' >>"$DIR/cluster.toml"
  run ! "$CRISWITCH" reload --config "$DIR/cluster.toml"
  wait_for 60 "the condition of a rejected reload" condition_is CRIReloadRejected True CRIReloadRejected nosuch
  wait_for 60 "the event of a rejected reload" event_of_detector Warning CRIReloadRejected nosuch
  render cluster.toml "$DIR/cluster.toml"
  "$CRISWITCH" reload --config "$DIR/cluster.toml"
  wait_for 60 "the condition of an applied reload" condition_is CRIReloadRejected False CRIConfigurationApplied ""
  start_containerd 1
  wait_for 60 "the condition of ready backends" condition_is CRIBackendsNotReady False CRIBackendsReady ""
  wait_for 60 "the event of ready backends" event_of_detector Normal CRIBackendsReady "is now: False"
  condition_is CRINRISocketLost False CRINRISocketsFine ""
  lose_nri_socket
  wait_for 60 "the condition of a lost NRI socket" condition_is CRINRISocketLost True CRINRISocketLost "$LOST"
  wait_for 60 "the event of a lost NRI socket" event_of_detector Warning CRINRISocketLost "$LOST"
  end_program TERM containerd-7
  wait_for 60 "the condition of fine NRI sockets" condition_is CRINRISocketLost False CRINRISocketsFine ""
  end_program KILL cluster
  wait_for 60 "the condition without criswitch" condition_is CRIBackendsNotReady Unknown CRIBackendsReady "exits with 69"
  start_switch cluster
  wait_for 60 "the condition of ready backends" condition_is CRIBackendsNotReady False CRIBackendsReady ""
  end_program TERM npd
}

LOST="no connection to this NRI socket reaches containerd"

# lose_nri_socket: starts a containerd with an NRI socket, and removes the file of the socket. criswitch recognizes NRI
# sockets by their name, which the other containerds of the suite do not use.
lose_nri_socket() {
  configure_containerd 7 && sed -i "s|$DIR/nri-7.sock|$DIR/npd/nri.sock|" "$DIR/containerd-7.toml" &&
    launch_containerd 7 && rm "$DIR/npd/nri.sock"
}

# start_problem_detector: starts node-problem-detector with the shipped configuration, but asks each second.
start_problem_detector() {
  local folder=$DIR/npd
  mkdir -p "$folder"
  cp "$TOP/config/node-problem-detector/check-criswitch.sh" "$folder"
  jq --arg script "$folder/check-criswitch.sh" '.pluginConfig.invoke_interval = "1s" | .rules[].args[0] = $script' \
    "$TOP/config/node-problem-detector/criswitch.json" >"$folder/criswitch.json"
  printf '#!/bin/sh\nexec %q "$@" --config %q\n' "$CRISWITCH" "$DIR/cluster.toml" >"$folder/criswitch"
  chmod +x "$folder/criswitch"
  start_program npd env "CRISWITCH=$folder/criswitch" nodeproblemdetector \
    --config.custom-plugin-monitor "$folder/criswitch.json" --hostname-override node \
    --port 0 --prometheus-port 0 --logtostderr \
    --apiserver-override "https://$API:$(kept api.port)?inClusterConfig=false&auth=$DIR/cluster/kubeconfig"
}

# condition_is TYPE STATUS REASON WORDS: succeeds when the node has the condition, with words in its message; a condition
# for wait_for.
condition_is() {
  api api/v1/nodes/node | jq -ec --arg type "$1" --arg status "$2" --arg reason "$3" --arg words "$4" '
    [.status.conditions[] | select(.type == $type)] | (., any(.[]; .status == $status and .reason == $reason and
    (.message | contains($words))))' | tee /dev/stderr | tail -n 1 | grep -qx true
}

# event_of_detector TYPE REASON WORDS: succeeds when node-problem-detector has written an event with these words; a
# condition for wait_for.
event_of_detector() {
  api api/v1/events | jq -c '.items[] |
    select(.source.component == "criswitch-monitor") | [.type, .reason, .message]' | tee /dev/stderr |
    jq -e --arg type "$1" --arg reason "$2" --arg words "$3" -s \
      'any(.[]; .[0] == $type and .[1] == $reason and (.[2] | contains($words)))' >/dev/null
}

@test "a pod without a class runs with the default class of its namespace" {
  "$CRISWITCH" manifests --policy=default-class --config "$DIR/cluster.toml" | kubectl_at_cluster apply -f - >/dev/null
  patch_namespace '"boxed"'
  wait_for 60 "the default class" gets_class boxed
  create_pod defaulted ""
  create_pod named gvisor
  for name in defaulted named; do
    wait_for 60 "the pod $name" pod_is "$name" "$RUNS"
  done
  equal "containerd 1" 1 "$(crictl_at 1 pods -q --state ready --name '^defaulted$' | wc -l)"
  equal "containerd 2" 1 "$(crictl_at 2 pods -q --state ready --name '^named$' | wc -l)"
  patch_namespace null
  wait_for 60 "no default class" gets_class null
  remove_all_pods
}

# patch_namespace CLASS: sets the label with the default class of the namespace, as JSON; null removes it.
patch_namespace() {
  api api/v1/namespaces/suite PATCH application/merge-patch+json \
    <<<"{\"metadata\": {\"labels\": {\"criswitch.io/default-class\": $1}}}" >/dev/null
}

# gets_class CLASS: succeeds when a pod without a class would get this class; a condition for wait_for.
gets_class() {
  local seen
  seen=$(api "api/v1/namespaces/suite/pods?dryRun=All" POST \
    <<<'{"metadata": {"name": "try"}, "spec": {"containers": [{"name": "main", "image": "image"}]}}' |
    jq -r .spec.runtimeClassName)
  echo "$seen"
  [ "$seen" = "$1" ]
}

# From here on, pods of the class boxed need the label of their handler.
@test "the scheduler places a pod of a RuntimeClass only while criswitch labels its handler" {
  local free='del(.spec.nodeName)'
  "$CRISWITCH" manifests --config "$DIR/cluster.toml" | kubectl_at_cluster apply -f - >/dev/null
  start_scheduler
  create_pod early boxed "$free"
  create_pod other "" "$free"
  wait_for 60 "a pod without a class" pod_is other "$RUNS"
  wait_for 60 "the reason why no node fits" fits_no_node early
  start_discovery
  start_program nfd-worker nfd_worker
  wait_for 60 "the pod on the labelled node" pod_is early "$RUNS"
  equal "the overhead" '{"cpu":"3m","memory":"13Mi"}' "$(api api/v1/namespaces/suite/pods/early | jq -c .spec.overhead)"

  end_program KILL containerd-1
  wait_for 60 "a node without the label" node_lacks criswitch.io/handler.boxed
  create_pod late boxed "$free"
  wait_for 60 "the reason why no node fits" fits_no_node late
  start_containerd 1
  wait_for 60 "the pod on the labelled node" pod_is late "$RUNS"
  remove_all_pods
}
