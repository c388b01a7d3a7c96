# The chart in a real kube-apiserver, with Helm 4, and in the nightly lane with Helm 3, too.

load helpers.bash
load cluster.bash

setup_file() {
  copy_chart
  start_cluster
  # Create prometheus-operator's custom resource, without its schema.
  api apis/apiextensions.k8s.io/v1/customresourcedefinitions POST <<<'{
    "metadata": {"name": "prometheusrules.monitoring.coreos.com"}, "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
    "names": {"kind": "PrometheusRule", "plural": "prometheusrules"}, "versions": [{"name": "v1", "served": true, "storage": true,
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}' >/dev/null
  wait_for 60 "the PrometheusRules" api apis/monitoring.coreos.com/v1/prometheusrules
}

teardown_file() {
  end_remaining KILL apiserver etcd
}

VALUES=$REAL/config/chart.yaml

# rendered VERSION ARGUMENT...: prints the objects of the chart.
rendered() {
  helm_at_cluster "$1" template chart "$CHART" "${@:2}"
}

# objects: prints the kind and the name of each object of the release in the cluster.
objects() {
  kubectl_at_cluster get --namespace suite --selector app.kubernetes.io/part-of=criswitch -o name \
    daemonsets,serviceaccounts,runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,prometheusrules,configmaps | sort
}

# try_pod CLASS: sends a pod that may set the clock to the API server, which only runs admission.
try_pod() {
  api "api/v1/namespaces/suite/pods?dryRun=All" POST <<<"{\"metadata\": {\"name\": \"pod\"}, \"spec\": {
    \"runtimeClassName\": \"$1\", \"containers\": [{\"name\": \"main\", \"image\": \"image\",
    \"securityContext\": {\"capabilities\": {\"add\": [\"SYS_TIME\"]}}}]}}"
}

is_rejected() {
  local seen
  seen=$(try_pod chart-gvisor) && return 1
  echo "$seen"
  [[ $seen == *"RuntimeClass chart-gvisor runs pods in gVisor"* ]]
}

@test "Helm finds no fault in the chart, and rejects every key with a wrong name or type" {
  local wrong said error
  for version in $HELMS; do
    helm_at_cluster "$version" lint --strict "$CHART"
    helm_at_cluster "$version" lint --strict --values "$VALUES" "$CHART"
    while read -r wrong; do
      jq .values <<<"$wrong" >"$DIR/chart.wrong"
      ! said=$(rendered "$version" --values "$VALUES" --values "$DIR/chart.wrong") || fail "helm$version accepts $wrong"
      while read -r error; do
        grep -q -- "$error" <<<"$said" || fail "helm$version: no error $error in: $said"
      done < <(jq -r '.errors[]' <<<"$wrong")
    done < <(jq -c -f "$REAL/config/chart-wrong.jq" "$CHART/values.schema.json")
  done
}

@test "README.md of the chart names every value" {
  local key
  for key in $(jq -r '.properties | del(.global) | keys[]' "$CHART/values.schema.json"); do
    grep -q "\`$key\`" "$CHART/README.md" || fail "README.md lacks $key" || return
  done
}

@test "Helm rejects values of the chart that the API server or a node would reject" {
  local wrong said
  for version in $HELMS; do
    for wrong in runtimeClasses.X.handler=runc runtimeClasses.x.kind=runc runtimeClasses.chart-runc.handler=Runc \
      runtimeClasses.chart-runc.overhead.podFixed.cpu=much pools.X.mode=plan pools.x.version=a/b pools.x.maxUnavailable=0 \
      pools.x.maxUnavailable=0% pools.x.minReadySeconds=-1 image.repository= resources.requests.cpu=much \
      image.digest=sha256:0 pools.x.digest=latest serviceAccount.name=A test.handler=Runc; do
      ! said=$(rendered "$version" --values "$VALUES" --set "$wrong") || fail "helm$version accepts $wrong"
      has "helm$version: $wrong" "values don't meet the specifications of the schema" "$said"
    done
    ! said=$(rendered "$version" --values "$VALUES" --set runtimeClasses.x.handler=runc) || fail "a class has no policy"
    has "helm$version" "runtimeClasses.x has no kind" "$said"
    ! said=$(rendered "$version" --set pools.x.mode=plan --set pools.y.mode=plan) || fail "pools have the same nodes"
    has "helm$version" "pools.x has no nodeSelector" "$said"
    ! said=$(rendered "$version" --values "$VALUES" --set pools.rest.version=1.0.0) || fail "a digest is of another version"
    has "helm$version" "pools.rest has a version, and image.digest is that of another version" "$said"
  done
}

@test "the API server accepts what the chart renders, with every value and with none" {
  for version in $HELMS; do
    rendered "$version" --values "$VALUES" >"$DIR/chart.rendered"
    kubectl_at_cluster apply --dry-run=server -f "$DIR/chart.rendered" >"$DIR/chart.accepted"
    equal "objects" 33 "$(wc -l <"$DIR/chart.accepted")"
    grep -q 'absent(up{job="nodes"})' "$DIR/chart.rendered"
    # The alerts and the dashboard have the name of the release. The dashboard is JSON, which escapes the quotes.
    grep -qF 'daemonset=~"chart-.+"' "$DIR/chart.rendered"
    grep -qF 'daemonset=~\"chart-.+\"' "$DIR/chart.rendered"
    ! grep -E 'job="criswitch"|the job criswitch|daemonset=~\\?"criswitch-' "$DIR/chart.rendered" ||
      fail "helm$version: the job or the release has its default name"
    equal "nothing" "" "$(rendered "$version")"
  done
}

# The file has the rendering of the first set of values, and for each other set the differences. UPDATE_EXPECT=1 writes
# the file.
GOLDEN=$REAL/config/chart.golden

# renderings: prints the expected content of GOLDEN, without the content of shipped files.
renderings() {
  local sets=$REAL/config/chart-sets.json name
  while read -r name; do
    jq --arg name "$name" '.[$name]' "$sets" >"$DIR/chart.set"
    rendered 4 --values "$DIR/chart.set" >"$DIR/chart.rendered" || fail "$(cat "$DIR/chart.rendered")" || return
    [[ $HELMS != *3* ]] ||
      same_file "$name with helm3" "$DIR/chart.rendered" <(rendered 3 --values "$DIR/chart.set") || return
    kubectl_at_cluster apply --dry-run=server -f "$DIR/chart.rendered" >"$DIR/chart.accepted" 2>&1 ||
      fail "$name: $(cat "$DIR/chart.accepted")" || return
    kubectl_at_cluster create --dry-run=client -o json -f "$DIR/chart.rendered" |
      jq -S 'if .kind | test("Policy|Rule|ConfigMap") then {kind, metadata} else . end' >"$DIR/chart.objects"
    echo "=== $name"
    if [ -e "$DIR/chart.first" ]; then
      diff "$DIR/chart.first" "$DIR/chart.objects" | grep '^[<>]'
    else
      tee "$DIR/chart.first" <"$DIR/chart.objects"
    fi
  done < <(jq -r 'keys_unsorted[]' "$sets")
}

# same_file WHAT EXPECTED ACTUAL: compares two files without their empty lines, and prints only what differs.
same_file() {
  local differences
  differences=$(diff <(grep '[^ ]' "$2") <(grep '[^ ]' "$3")) || fail "$1: $differences"
}

@test "the API server accepts each set of values of the chart, and Helm renders them as before" {
  renderings >"$DIR/chart.renderings"
  [ -z "${UPDATE_EXPECT:-}" ] || cp "$DIR/chart.renderings" "$GOLDEN"
  same_file "the renderings" "$GOLDEN" "$DIR/chart.renderings"
}

@test "a pod of a pool of the chart has no privileges, no token, and two volumes of its node" {
  rendered 4 --values "$VALUES" | kubectl_at_cluster create --dry-run=client -o json -f - |
    jq -s '.[] | select(.kind == "DaemonSet")' >"$DIR/chart.pools"
  equal "the pools and their pace" 'chart-canary 1 0
chart-others 10% 60
chart-rest 1 0' "$(jq -r '[.metadata.name, .spec.updateStrategy.rollingUpdate.maxUnavailable, .spec.minReadySeconds] | join(" ")' "$DIR/chart.pools")"
  equal "volumes of the node" '/run/systemd true
/var/lib/criswitch/node false' "$(jq -r '.spec.template.spec | .containers[0].volumeMounts as $mounts | .volumes[] |
    select(.hostPath) | .name as $name | "\(.hostPath.path) \(any($mounts[]; .name == $name and .readOnly == true))"' "$DIR/chart.pools" | sort -u)"
  equal "privileges" '[null,null,null,false,1,false,true,["ALL"],null,null,0]' "$(jq -c '.spec.template.spec | [
    .hostNetwork, .hostPID, .hostIPC, .automountServiceAccountToken, (.containers | length), (.containers[0].securityContext |
    .allowPrivilegeEscalation, .readOnlyRootFilesystem, .capabilities.drop, .capabilities.add, .privileged, .runAsUser)]' "$DIR/chart.pools" |
    sort -u)"
  equal "the arguments" 'node follow --mode=install --spec=/specification/spec.toml
node follow --mode=plan
node follow --mode=uninstall' "$(jq -r '.spec.template.spec.containers[0].args | join(" ")' "$DIR/chart.pools" | sort)"
  equal "images" "registry.test/criswitch:0.0.9@sha256:$(printf 'b%.0s' {1..64})
registry.test/criswitch:$(sed -n 's/^appVersion: //p' "$CHART/Chart.yaml")@sha256:$(printf 'a%.0s' {1..64})" "$(jq -r '.spec.template.spec.containers[0].image' "$DIR/chart.pools" | sort -u)"
}

@test "the base for kustomize is a pool of the chart in mode plan" {
  helm_at_cluster 4 template criswitch "$CHART" --namespace criswitch --set "pools.nodes.specification=[node]
" >"$DIR/chart.rendered"
  kubectl_at_cluster kustomize "$TOP/deploy/kustomize" >"$DIR/chart.base"
  kubectl_at_cluster apply --dry-run=client -f "$DIR/chart.base" >/dev/null
  same_file "the base" <(pool_of "$DIR/chart.rendered") <(pool_of "$DIR/chart.base")
}

# pool_of FILE: prints the DaemonSet in a file without the labels that only Helm sets.
pool_of() {
  kubectl_at_cluster create --dry-run=client -o json -f "$1" | jq -S 'select(.kind == "DaemonSet") |
    .metadata.labels |= del(.["helm.sh/chart"], .["app.kubernetes.io/instance"], .["app.kubernetes.io/version"],
    .["app.kubernetes.io/managed-by"])'
}

@test "the pod of helm test has no label of a pool, no privileges and no token, and tries the handler on a node of the pool" {
  rendered 4 --values "$VALUES" | kubectl_at_cluster create --dry-run=client -o json -f - |
    jq -s 'map(select(.kind == "Pod"))' >"$DIR/chart.test"
  equal "the pods" chart-canary-test "$(jq -r '.[].metadata.name' "$DIR/chart.test")"
  equal "labels of pools" 0 "$(jq '[.[].metadata.labels | keys[] | select(startswith("criswitch.io/"))] | length' "$DIR/chart.test")"
  equal "the node and the user" '["canary",false,"nodes"]' \
    "$(jq -c '.[0].spec | [.nodeSelector.pool, .automountServiceAccountToken, .serviceAccountName]' "$DIR/chart.test")"
  equal "the arguments" 'try runc --socket=/run/criswitch/criswitch.sock --host-network' \
    "$(jq -r '.[0].spec.containers[0].args | join(" ")' "$DIR/chart.test")"
  equal "privileges" '[false,["ALL"],null]' "$(jq -c '.[0].spec.containers[0].securityContext |
    [.allowPrivilegeEscalation, .capabilities.drop, .privileged]' "$DIR/chart.test")"
}

@test "a release of the chart is installed, upgraded, rolled back and uninstalled, and the API server enforces its policies" {
  for version in $HELMS; do
    helm_at_cluster "$version" install chart "$CHART" --set runtimeClasses.chart-gvisor.handler=runsc
    equal "installed" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    # The API server learns of a new class some time after its creation.
    wait_for 60 "the class of the chart" try_pod chart-gvisor
    said=$(helm_at_cluster "$version" upgrade chart "$CHART" --values "$VALUES")
    has "notes" "chart-kata: handler kata" "$said"
    equal "upgraded" 32 "$(objects | wc -l)"
    wait_for 60 "the policy of the chart" is_rejected
    helm_at_cluster "$version" rollback chart 1
    equal "rolled back" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    helm_at_cluster "$version" uninstall chart
    equal "uninstalled" "" "$(objects)"
  done
}
