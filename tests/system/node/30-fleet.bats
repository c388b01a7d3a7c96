# The chart on 500 simulated nodes: its pace, and its stop at failures.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/cluster.bash

setup_file() {
  start_cluster
  start_scheduler
  # The controller's default limit of 20 requests a second would only make the test longer.
  start_controllers --kube-api-qps 500 --kube-api-burst 1000
  copy_chart
  start_program proxy kubectl --kubeconfig "$DIR/cluster/kubeconfig" proxy --port 0
  wait_for 60 "the proxy" grep -q 'serve on 127' "$DIR/proxy.log"
}

teardown_file() {
  for program in proxy controllers scheduler apiserver etcd; do
    [ ! -e "$DIR/$program.log" ] || end_program KILL "$program" || true
  done
}

@test "a rollout over 500 nodes keeps its pace, stops at failures, and passes dead nodes" {
  local out
  out=$(cd "$TOP" && FLEET_PROXY=$(sed -n 's/^.*serve on //p' "$DIR/proxy.log") FLEET_CHART=$CHART \
    KUBECONFIG=$DIR/cluster/kubeconfig HELM_CACHE_HOME=$DIR/helm HELM_CONFIG_HOME=$DIR/helm HELM_DATA_HOME=$DIR/helm \
    cargo test --quiet --locked --test cli -- --ignored --nocapture rollout 2>&1) || fail "$out"
  grep 'unavailable at once$\|API requests' <<<"$out" | sed 's/^/# /' >&3
}
