# The chart in a real kube-apiserver, with Helm 3 and Helm 4.

load helpers.bash
load cluster.bash

setup_file() {
  copy_chart
  start_cluster
  # prometheus-operator's resource, without its schema.
  api apis/apiextensions.k8s.io/v1/customresourcedefinitions POST <<<'{
    "metadata": {"name": "prometheusrules.monitoring.coreos.com"}, "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
    "names": {"kind": "PrometheusRule", "plural": "prometheusrules"}, "versions": [{"name": "v1", "served": true, "storage": true,
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}' >/dev/null
  wait_for 30 "the PrometheusRules" api apis/monitoring.coreos.com/v1/prometheusrules
}

teardown_file() {
  for program in apiserver etcd; do
    [ -e "$DIR/$program.exit" ] || end_program KILL "$program" || true
  done
}

VALUES=$REAL/config/chart.yaml

# rendered VERSION ARGUMENT...: prints the objects of the chart.
rendered() {
  helm_at_cluster "$1" template chart "$CHART" "${@:2}"
}

# objects: prints the kind and the name of each object of the release in the cluster.
objects() {
  kubectl_at_cluster get --namespace suite --selector app.kubernetes.io/part-of=criswitch -o name \
    daemonsets,runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,prometheusrules,configmaps | sort
}

# try_pod CLASS: sends a pod with the network of the node to the API server, which only runs admission.
try_pod() {
  api "api/v1/namespaces/suite/pods?dryRun=All" POST <<<"{\"metadata\": {\"name\": \"pod\"}, \"spec\": {\"hostNetwork\": true,
    \"runtimeClassName\": \"$1\", \"containers\": [{\"name\": \"main\", \"image\": \"image\"}]}}"
}

is_rejected() {
  local seen
  seen=$(try_pod chart-gvisor) && return 1
  echo "$seen"
  [[ $seen == *"RuntimeClass chart-gvisor runs pods in gVisor"* ]]
}

@test "both Helms find no fault in the chart, and reject values with a wrong name or type" {
  for version in 3 4; do
    helm_at_cluster $version lint --strict "$CHART"
    helm_at_cluster $version lint --strict --values "$VALUES" "$CHART"
    for wrong in runtimeClass.x.handler=runc runtimeClasses.x.handlers=runc runtimeClasses.x=runc runtimeClasses.X.handler=runc \
      runtimeClasses.chart-runc.handler=Runc runtimeClasses.chart-runc.handler=true runtimeClasses.chart-runc.kind=docker \
      runtimeClasses.chart-runc.overhead.cpu=1m runtimeClasses.chart-runc.overhead.podFixed.cpu=much \
      runtimeClasses.chart-runc.scheduling.nodeselector.a=b runtimeClasses.chart-runc.scheduling.nodeSelector.a=true \
      policies=1 alerts=yes dashboard=on policy=true \
      pool.x.mode=check pools.x=check pools.X.mode=check pools.x.modes=check pools.x.mode=remove pools.x.mode=true \
      pools.x.specification=1 pools.x.specifications=a pools.x.version=a/b pools.x.versions=1 pools.x.nodeSelector=a \
      pools.x.nodeSelector.a=1 pools.x.nodeselector.a=b pools.x.tolerations=a 'pools.x.tolerations[0].keys=a' \
      pools.x.maxUnavailable=0 pools.x.maxUnavailable=0% pools.x.maxUnavailable=true pools.x.maxunavailable=1 \
      pools.x.minReadySeconds=-1 pools.x.minReadySeconds=a pools.x.minReady=1 image=a image.repository= image.repository=1 \
      image.repositories=a image.pullPolicy=Sometimes image.policy=Never image.pullSecrets=a 'image.pullSecrets[0]=1' \
      image.secrets=a priorityClassName=1 priorityClass=a resources=1 resources.requests.cpu=much resources.limit.cpu=1; do
      ! said=$(rendered $version --values "$VALUES" --set "$wrong") || fail "helm$version accepts $wrong"
      has "helm$version: $wrong" "values don't meet the specifications of the schema" "$said"
    done
    ! said=$(rendered $version --values "$VALUES" --set runtimeClasses.x.handler=runc) || fail "a class has no policy"
    has "helm$version" "runtimeClasses.x has no kind" "$said"
    ! said=$(rendered $version --set pools.x.mode=check --set pools.y.mode=check) || fail "pools have the same nodes"
    has "helm$version" "pools.x has no nodeSelector" "$said"
  done
}

@test "the API server accepts what the chart renders, with every value and with none" {
  for version in 3 4; do
    rendered $version --values "$VALUES" >"$DIR/chart.rendered"
    kubectl_at_cluster apply --dry-run=server -f "$DIR/chart.rendered" >"$DIR/chart.accepted"
    equal "objects" 30 "$(wc -l <"$DIR/chart.accepted")"
    equal "nothing" "" "$(rendered $version)"
  done
}

@test "a pod of a pool has no privileges, no token, and two volumes of its node" {
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
  equal "the arguments" 'node follow --mode=check
node follow --mode=install --spec=/specification/spec.toml
node follow --mode=uninstall' "$(jq -r '.spec.template.spec.containers[0].args | join(" ")' "$DIR/chart.pools" | sort)"
  equal "images" 'registry.test/criswitch:0.0.9
registry.test/criswitch:'"$(sed -n 's/^appVersion: //p' "$CHART/Chart.yaml")" "$(jq -r '.spec.template.spec.containers[0].image' "$DIR/chart.pools" | sort -u)"
}

@test "a release is installed, upgraded, rolled back and uninstalled, and the API server enforces its policies" {
  for version in 3 4; do
    helm_at_cluster $version install chart "$CHART" --set runtimeClasses.chart-gvisor.handler=runsc
    equal "installed" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    # The API server learns of a new class some time after its creation.
    wait_for 30 "the class of the chart" try_pod chart-gvisor
    said=$(helm_at_cluster $version upgrade chart "$CHART" --values "$VALUES")
    has "notes" "chart-kata: handler kata" "$said"
    equal "upgraded" 30 "$(objects | wc -l)"
    wait_for 30 "the policy of the chart" is_rejected
    helm_at_cluster $version rollback chart 1
    equal "rolled back" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    helm_at_cluster $version uninstall chart
    equal "uninstalled" "" "$(objects)"
  done
}
