# The chart in a real kube-apiserver, with Helm 3 and Helm 4.

load helpers.bash
load cluster.bash

setup_file() {
  # The chart of a release has no links.
  cp -rL "$TOP/deploy/chart" "$DIR/chart"
  # The suite's kube-apiserver and Helm 3 do not know their version.
  sed -i '/^kubeVersion: /d' "$DIR/chart/Chart.yaml"
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

CHART=$DIR/chart
VALUES=$REAL/config/chart.yaml

# helm_at_cluster VERSION ARGUMENT...: runs helm3 or helm4.
helm_at_cluster() {
  HELM_CACHE_HOME=$DIR/helm HELM_CONFIG_HOME=$DIR/helm HELM_DATA_HOME=$DIR/helm \
    "helm$1" --kubeconfig "$DIR/cluster/kubeconfig" --namespace suite "${@:2}" 2>&1
}

# rendered VERSION ARGUMENT...: prints the objects of the chart.
rendered() {
  helm_at_cluster "$1" template chart "$CHART" "${@:2}"
}

# objects: prints the kind and the name of each object of the release in the cluster.
objects() {
  kubectl_at_cluster get --namespace suite --selector app.kubernetes.io/part-of=criswitch -o name \
    runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,prometheusrules,configmaps | sort
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
      policies=1 alerts=yes dashboard=on policy=true; do
      ! said=$(rendered $version --values "$VALUES" --set "$wrong") || fail "helm$version accepts $wrong"
      has "helm$version: $wrong" "values don't meet the specifications of the schema" "$said"
    done
    ! said=$(rendered $version --values "$VALUES" --set runtimeClasses.x.handler=runc) || fail "a class has no policy"
    has "helm$version" "runtimeClasses.x has no kind" "$said"
  done
}

@test "the API server accepts what the chart renders, with every value and with none" {
  for version in 3 4; do
    rendered $version --values "$VALUES" >"$DIR/chart.rendered"
    kubectl_at_cluster apply --dry-run=server -f "$DIR/chart.rendered" >"$DIR/chart.accepted"
    equal "objects" 27 "$(wc -l <"$DIR/chart.accepted")"
    equal "nothing" "" "$(rendered $version)"
  done
}

@test "a release is installed, upgraded, rolled back and uninstalled, and the API server enforces its policies" {
  for version in 3 4; do
    helm_at_cluster $version install chart "$CHART" --set runtimeClasses.chart-gvisor.handler=runsc
    equal "installed" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    try_pod chart-gvisor >/dev/null
    said=$(helm_at_cluster $version upgrade chart "$CHART" --values "$VALUES")
    has "notes" "chart-kata: handler kata" "$said"
    equal "upgraded" 27 "$(objects | wc -l)"
    wait_for 30 "the policy of the chart" is_rejected
    helm_at_cluster $version rollback chart 1
    equal "rolled back" runtimeclass.node.k8s.io/chart-gvisor "$(objects)"
    helm_at_cluster $version uninstall chart
    equal "uninstalled" "" "$(objects)"
  done
}
