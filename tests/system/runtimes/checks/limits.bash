# shellcheck shell=bash
# Shared by the checks of known limits: pods whose output shows what a runtime does.

# have_probe: builds the static program $DIR/tools/probe, which is setuid.
have_probe() {
  mkdir -p "$DIR/tools"
  gcc -static -Os -o "$DIR/tools/probe" "$REAL/images/probe.c" && chmod 4755 "$DIR/tools/probe"
}

# runs HANDLER SHELL-COMMAND [POD-FILTER [CONTAINER-FILTER]]: runs a pod with a container, waits for the end of the
# container, and prints its output. If the pod or container is not created or started, prints `refused:` and the reason.
runs() {
  local name=$CASE-$1 pod id out
  pod=$(cri runp --runtime "$1" "$(pod_config "$name" "${3:-.}")" 2>&1 </dev/null) || { echo "refused: $pod"; return; }
  id=$(cri create --no-pull "$pod" "$(container_config "$name" "$2" "${4:-.}")" "$DIR/pod-$name.json" 2>&1 </dev/null) ||
    { echo "refused: $id"; return; }
  out=$(cri start "$id" 2>&1 </dev/null) || { echo "refused: $out"; return; }
  wait_for 60 "the end of the container" is_in_state "$id" CONTAINER_EXITED || return
  cut -d' ' -f4- "$DIR/logs/$name/$name.log"
}

# works_on_others EXPECTED ARGUMENT...: checks that runs prints this part on runc and on crun.
works_on_others() {
  local expected=$1 handler
  for handler in runc crun; do
    has "$handler" "$expected" "$(runs "$handler" "${@:2}")" || return
  done
}

# namespace KIND: the jq filter for a pod that shares this namespace with the node.
namespace() {
  echo ".linux.security_context.namespace_options.$1 = 2"
}

# mounts PATH [JQ-OBJECT]: the jq filter for a container with this path of the node at /node.
mounts() {
  echo ".mounts = [{host_path: \"$1\", container_path: \"/node\"} + ${2:-{\}}]"
}
