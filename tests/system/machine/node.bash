# shellcheck shell=bash
# A node with a kubelet, which `criswitch node` changes.

# shellcheck source=tests/system/node/node.bash
. /share/node/node.bash
# shellcheck source=tests/system/node/cuts.bash
. /share/node/cuts.bash

# in_node COMMAND...: runs the command on the machine, which is the node itself.
in_node() {
  "$@"
}

root() {
  echo /
}

# keep_as NAME / kept NAME: saves standard input, or prints it, for the checks of all boots.
keep_as() {
  cat >"$DIR/$1"
}

kept() {
  cat "$DIR/$1"
}

# seconds_of CHANGE ARGUMENT...: changes the node, and writes to the share how long that took.
seconds_of() {
  local began=$SECONDS
  node "$@" && echo $((SECONDS - began)) >"/share/seconds-$1"
}

# pods_run: succeeds when the kubelet is healthy and its two containers run; a condition for wait_for.
pods_run() {
  local running
  curl -sSf -o /dev/null --max-time 20 http://127.0.0.1:10248/healthz || return
  running=$(crictl_at 1 ps --state running -o json | jq -r '.containers[].labels["io.kubernetes.pod.name"]' | sort) || return
  equal "pods with a running container" "firm-machine fixed-machine" "$(paste -sd ' ' <<<"$running")"
}
