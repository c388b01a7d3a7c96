# shellcheck shell=bash
# What the checks share: crictl, pods and containers, and assertions that say what they saw.

# shellcheck source=tests/real/setup.sh
. "$REAL/setup.sh"

# shellcheck disable=SC2034 # The checks use it.
HANDLERS="runc crun gvisor sandboxed"
# shellcheck disable=SC2034 # The checks use it.
BUSYBOX=registry.test/busybox:1

# crictl through the switch.
cri() {
  crictl_at switch "$@"
}

# owner_of HANDLER: the containerd (1 or 2) that runs its pods.
owner_of() {
  if [ "$1" = crun ]; then echo 1; else echo 2; fi
}

# pod_config NAME [JQ-FILTER]: writes a pod's configuration, changed by the filter, and prints the file's name.
pod_config() {
  local file=$DIR/pods/$1.json
  mkdir -p "$DIR/pods" "$DIR/logs/$1"
  jq -n --arg name "$1" --arg logs "$DIR/logs/$1" --arg parent "/${DIR##*/}" '{
    metadata: {name: $name, uid: "uid-\($name)", namespace: "suite", attempt: 0},
    labels: {"io.kubernetes.pod.name": $name, "io.kubernetes.pod.uid": "uid-\($name)"},
    log_directory: $logs, linux: {cgroup_parent: $parent}
  }' | jq "${2:-.}" >"$file"
  echo "$file"
}

# run_pod HANDLER NAME: starts a pod through the switch and prints its id.
run_pod() {
  cri runp --runtime "$1" "$(pod_config "$2")"
}

# pods_at N: the ids of every pod that a containerd has, sorted.
pods_at() {
  crictl_at "$1" pods -q | sort
}

# remove_pods: for teardown; every pod, at the containerds themselves.
remove_pods() {
  crictl_at 1 rmp -af >/dev/null 2>&1
  crictl_at 2 rmp -af >/dev/null 2>&1
}

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

# equal WHAT EXPECTED SEEN
equal() {
  [ "$2" = "$3" ] || fail "$1: expected <$2>, saw <$3>"
}

# has WHAT EXPECTED-PART SEEN
has() {
  [[ $3 == *"$2"* ]] || fail "$1: expected <$2> in: $3"
}

# lacks WHAT PART SEEN
lacks() {
  [[ $3 != *"$2"* ]] || fail "$1: did not expect <$2> in: $3"
}
