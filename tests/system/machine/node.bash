# shellcheck shell=bash
# A node with a kubelet, which `criswitch node` changes.

# shellcheck source=tests/system/node/node.bash
. /share/node/node.bash

# in_node COMMAND...: the machine is the node.
in_node() {
  "$@"
}

root() {
  echo /
}

# keep_on_disk NAME / on_disk NAME: saves standard input for later boots, or prints it.
keep_on_disk() {
  cat >"$DIR/$1"
}

on_disk() {
  cat "$DIR/$1"
}

# pods_run: succeeds when the kubelet is healthy and its two containers run; a condition for wait_for.
pods_run() {
  local running
  curl -sSf -o /dev/null --max-time 20 http://127.0.0.1:10248/healthz || return
  running=$(crictl_at 1 ps --state running -o json | jq -r '.containers[].labels["io.kubernetes.pod.name"]' | sort) || return
  equal "pods with a running container" "firm-machine fixed-machine" "$(paste -sd ' ' <<<"$running")"
}
