# shellcheck shell=bash
# A cluster of one node: etcd, a kube-apiserver and the kubelet. Pods name their node, except where start_scheduler is
# used.

# The address of the kube-apiserver.
API=${API:-127.0.0.1}

# start_cluster [ARGUMENT...]: starts etcd and the kube-apiserver of a new cluster. AUTHORIZATION may name authorizers.
start_cluster() {
  local folder=$DIR/cluster ports
  rm -rf "$folder"
  mkdir -p "$folder"
  # The ports are below 32768, because the kernel uses the ports from 32768 on for outgoing connections.
  mapfile -t ports < <(comm -23 <(seq 30000 32767) <(ss -Htnal | sed 's/.*:\([0-9]*\) .*:.*/\1/' | sort) | shuf -n 3)
  keep_as api.port <<<"${ports[2]}"
  openssl genrsa -out "$folder/key" 2048 2>/dev/null
  echo 'token,admin,admin,system:masters' >"$folder/tokens"
  start_program etcd etcd --data-dir "$folder/etcd" --unsafe-no-fsync --log-level error \
    --listen-client-urls "http://127.0.0.1:${ports[0]}" --advertise-client-urls "http://127.0.0.1:${ports[0]}" \
    --listen-peer-urls "http://127.0.0.1:${ports[1]}" --initial-advertise-peer-urls "http://127.0.0.1:${ports[1]}" \
    --initial-cluster "default=http://127.0.0.1:${ports[1]}"
  # The cluster has no controllers: none creates service accounts, and none removes the taint from a new node.
  start_program apiserver kube-apiserver --etcd-servers "http://127.0.0.1:${ports[0]}" --bind-address "$API" \
    --secure-port "${ports[2]}" --cert-dir "$folder" --service-cluster-ip-range 10.99.0.0/24 \
    --service-account-issuer https://cluster.test --service-account-signing-key-file "$folder/key" \
    --service-account-key-file "$folder/key" --token-auth-file "$folder/tokens" \
    --authorization-mode "${AUTHORIZATION:-AlwaysAllow}" --kubelet-preferred-address-types InternalIP --allow-privileged \
    --disable-admission-plugins ServiceAccount,TaintNodesByCondition "$@"
  wait_for 60 "the kube-apiserver" api readyz || fail "$(tail -n 5 "$DIR"/{etcd,apiserver}.log)" || return
  api api/v1/namespaces POST <<<'{"metadata": {"name": "suite"}}' >/dev/null
  api apis/node.k8s.io/v1/runtimeclasses POST <<<'{"metadata": {"name": "boxed"}, "handler": "boxed"}' >/dev/null
  render kubeconfig.yaml "$folder/kubeconfig" "ADDRESS=$API" "PORT=${ports[2]}"
}

# api PATH [METHOD [CONTENT-TYPE]]: calls the kube-apiserver; methods other than GET and DELETE send standard input.
api() {
  local body=()
  case ${2:-GET} in POST | PUT | PATCH) body=(--data-binary @- -H "Content-Type: ${3:-application/json}") ;; esac
  curl -ksS --fail-with-body --max-time 60 -H 'Authorization: Bearer token' -X "${2:-GET}" "${body[@]}" \
    "https://$API:$(kept api.port)/$1"
}

# start_node [ARGUMENT...]: starts the kubelet of the cluster with the criswitch `cluster`.
start_node() {
  start_kubelet cluster --kubeconfig "$DIR/cluster/kubeconfig" "$@"
}

# start_scheduler: starts the kube-scheduler of the cluster.
start_scheduler() {
  start_program scheduler kube-scheduler --kubeconfig "$DIR/cluster/kubeconfig" --leader-elect=false --secure-port 0
}

# start_discovery: starts the master of node-feature-discovery, which labels nodes by what their workers have found.
start_discovery() {
  kubectl_at_cluster apply -f "$(dirname "$(command -v nfd-master)")/nfd-api-crds.yaml" >/dev/null &&
    wait_for 60 "the resource of node-feature-discovery" api apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures || return
  NODE_NAME=node start_program nfd-master nfd-master -kubeconfig "$DIR/cluster/kubeconfig" -metrics 0 -grpc-health 0
}

# The flags of a worker of node-feature-discovery that reads features.d only, and does so each second.
NFD_FLAGS=(-metrics 0 -grpc-health 0 -feature-sources local -label-sources local
  -options '{"core": {"sleepInterval": "1s"}}')

# nfd_worker ARGUMENT...: runs a worker of node-feature-discovery on the files of the folder features.d. The worker
# reads files below /etc/kubernetes only, so it has a mount namespace with a separate /etc.
nfd_worker() {
  local features=/etc/kubernetes/node-feature-discovery/features.d
  # shellcheck disable=SC2016 # The inner shell expands these.
  NODE_NAME=node KUBERNETES_NAMESPACE=suite exec unshare --mount sh -c '
    mount -t tmpfs tmpfs /etc && mkdir -p "$1" && mount --bind "$2" "$1" && shift 2 && exec nfd-worker "$@"
  ' sh "$features" "$DIR/features.d" -kubeconfig "$DIR/cluster/kubeconfig" "${NFD_FLAGS[@]}" "$@"
}

# nfd_labels: prints the labels that a worker of node-feature-discovery would give the node, sorted.
nfd_labels() {
  local log=$BATS_TEST_TMPDIR/nfd
  (nfd_worker -v=1 -oneshot -no-publish) >"$log" 2>&1 || fail "the worker failed: $(cat "$log")" || return
  sed -n 's,^\t\(criswitch\.io/[^:]*\): "\{0\,1\}\([^"]*\)"\{0\,1\}$,\1=\2,p' "$log" | LC_ALL=C sort
}

# start_controllers [ARGUMENT...]: starts the controller of DaemonSets, and those of the arguments. The garbage collector
# removes the pods of a DaemonSet that is deleted.
start_controllers() {
  start_program controllers kube-controller-manager --kubeconfig "$DIR/cluster/kubeconfig" --leader-elect=false \
    --secure-port 0 --controllers daemonset-controller "$@"
}

# The chart as a release has it.
# shellcheck disable=SC2034 # The checks use it.
CHART=$DIR/chart

# copy_chart: copies the chart without symbolic links, as a release has it.
copy_chart() {
  rm -rf "$CHART"
  cp -rL "$TOP/deploy/chart" "$CHART"
  # The suite's kube-apiserver and Helm 3 do not know their version.
  sed -i '/^kubeVersion: /d' "$CHART/Chart.yaml"
}

# helm_at_cluster VERSION ARGUMENT...: runs helm4, or helm3, which the nightly lane has.
helm_at_cluster() {
  HELM_CACHE_HOME=$DIR/helm HELM_CONFIG_HOME=$DIR/helm HELM_DATA_HOME=$DIR/helm \
    "helm$1" --kubeconfig "$DIR/cluster/kubeconfig" --namespace suite "${@:2}" 2>&1
}

kubectl_at_cluster() {
  kubectl --kubeconfig "$DIR/cluster/kubeconfig" "$@"
}

# create_pod NAME CLASS [JQ-FILTER]: creates a pod of this RuntimeClass, or without one if CLASS is empty. The filter
# changes the pod. The container of the unchanged pod does not end.
create_pod() {
  jq -n --arg name "$1" --arg class "$2" '{
    metadata: {name: $name}, spec: {
      nodeName: "node", terminationGracePeriodSeconds: 1, enableServiceLinks: false,
      containers: [{name: "main", image: "registry.test/busybox:1", command: ["sleep", "1000000"]}]
    }} | if $class != "" then .spec.runtimeClassName = $class else . end' | jq "${3:-.}" |
    api api/v1/namespaces/suite/pods POST >/dev/null
}

# patch_pod NAME[/SUBRESOURCE] JSON: sends a strategic merge patch.
patch_pod() {
  api "api/v1/namespaces/suite/pods/$1" PATCH application/strategic-merge-patch+json <<<"$2" >/dev/null
}

delete_pod() {
  api "api/v1/namespaces/suite/pods/$1" DELETE >/dev/null
}

# pod_is NAME JQ-FILTER: succeeds when the filter is true for the pod; a condition for wait_for.
pod_is() {
  local seen
  seen=$(api "api/v1/namespaces/suite/pods/$1") || return
  jq -c '.status | [.phase, .initContainerStatuses, .containerStatuses, .ephemeralContainerStatuses]' <<<"$seen"
  jq -e "$2" <<<"$seen" >/dev/null
}

# A jq filter: all containers of a pod run.
# shellcheck disable=SC2034 # The checks use it.
RUNS='([.status.containerStatuses[]?.state.running] | length > 0 and all)'

# pod_gone NAME: succeeds when the pod does not exist; a condition for wait_for.
pod_gone() {
  ! api "api/v1/namespaces/suite/pods/$1"
}

# watch_node: records the node's conditions from now on.
watch_node() {
  in_background "$BATS_TEST_TMPDIR/node" curl -ksSN -H 'Authorization: Bearer token' \
    "https://$API:$(kept api.port)/api/v1/nodes?watch=true"
  wait_for 60 "the node's first condition" test -s "$BATS_TEST_TMPDIR/node"
}

# never_unready: checks that every Ready condition since watch_node is True, and that the kubelet has continued to
# report the condition.
never_unready() {
  local seen
  seen=$(jq -rR 'fromjson? | .object.status.conditions[]? | select(.type == "Ready")
    | "\(.status) \(.reason) \(.message)"' "$BATS_TEST_TMPDIR/node" | sort | uniq -c)
  echo "# the node's conditions: $seen" >&3
  lacks "the node's conditions" False "$seen"
  has "the node's conditions" True "$seen"
}

# runs_now: prints id, restarts and state of each container of the suite's pods.
runs_now() {
  api api/v1/namespaces/suite/pods | jq -r '.items[] | .metadata.name as $pod | .status.containerStatuses[]?
    | "\($pod) \(.containerID) \(.restartCount) \(.state | tojson)"' | sort
}

remove_all_pods() {
  api api/v1/namespaces/suite/pods DELETE >/dev/null && wait_for 90 "the end of all pods" no_pods
}

# no_pods: succeeds when no pod exists; a condition for wait_for.
no_pods() {
  local seen
  seen=$(api api/v1/namespaces/suite/pods | jq -r '.items[].metadata.name') || return
  echo "$seen"
  [ -z "$seen" ]
}

# fits_no_node POD: succeeds when the scheduler has found no node that the pod selects; a condition for wait_for.
fits_no_node() {
  pod_is "$1" '.status.conditions[]? | select(.type == "PodScheduled")
    | .status == "False" and (.message | contains("node(s) didn\u0027t match Pod\u0027s node affinity/selector"))'
}

# node_lacks LABEL [NODE]: succeeds when the node does not have the label; a condition for wait_for.
node_lacks() {
  api "api/v1/nodes/${2:-node}" | jq -e --arg key "$1" '.metadata.labels | has($key) | not'
}
