# shellcheck shell=bash
# Shared by all checks: crictl, pods and containers, and assertions that print the actual value.

bats_require_minimum_version 1.5.0

# shellcheck source=tests/system/runtimes/setup.sh
. "$REAL/setup.sh"

# shellcheck disable=SC2034 # The checks use these.
{
  HANDLERS="runc crun gvisor sandboxed"
  BUSYBOX=registry.test/busybox:1
}

# cri ARGUMENT...: runs crictl through criswitch.
cri() {
  crictl_at criswitch "$@"
}

# owner_of HANDLER: prints the number of the containerd that runs the handler's pods.
owner_of() {
  if [ "$1" = crun ]; then echo 1; else echo 2; fi
}

# other_than N: prints the number of the other containerd behind criswitch.
other_than() {
  echo $((3 - $1))
}

# pod_config NAME [JQ-FILTER]: writes a pod's configuration, changed by the filter, and prints the file's name.
pod_config() {
  local file=$DIR/pod-$1.json
  mkdir -p "$DIR/logs/$1"
  jq -n --arg name "$1" --arg logs "$DIR/logs/$1" --arg parent "/${DIR##*/}" '{
    metadata: {name: $name, uid: "uid-\($name)", namespace: "suite", attempt: 0},
    labels: {"io.kubernetes.pod.name": $name, "io.kubernetes.pod.uid": "uid-\($name)"},
    log_directory: $logs, linux: {cgroup_parent: $parent}
  }' | jq "${2:-.}" >"$file"
  echo "$file"
}

# container_config NAME SHELL-COMMAND [JQ-FILTER]: writes the configuration of a container of the busybox image, changed
# by the filter, and prints the file's name.
container_config() {
  local file=$DIR/container-$1.json
  jq -n --arg name "$1" --arg image "$BUSYBOX" --arg command "$2" '{
    metadata: {name: $name, attempt: 0}, image: {image: $image}, log_path: "\($name).log",
    command: ["sh", "-c", $command], linux: {}
  }' | jq "${3:-.}" >"$file"
  echo "$file"
}

# run_pod HANDLER NAME: creates a pod through criswitch and prints its id.
run_pod() {
  cri runp --runtime "$1" "$(pod_config "$2")"
}

# run_container POD-ID POD-NAME NAME SHELL-COMMAND [JQ-FILTER]: creates and starts a container, and prints its id.
run_container() {
  local id
  id=$(cri create --no-pull "$1" "$(container_config "$3" "$4" "${5:-.}")" "$DIR/pod-$2.json") &&
    cri start "$id" >/dev/null && echo "$id"
}

# state_of CONTAINER-ID: prints the container's state.
state_of() {
  cri inspect "$1" | jq -r .status.state
}

# is_in_state ID STATE: succeeds when the container is in this state; a condition for wait_for.
is_in_state() {
  local seen
  seen=$(state_of "$1")
  echo "$seen"
  [ "$seen" = "$2" ]
}

# pods_at WHERE: prints the ids of all pods at WHERE, sorted.
pods_at() {
  crictl_at "$1" pods -q | sort
}

# have_images: pulls the suite's image into every containerd behind criswitch, without criswitch.
have_images() {
  crictl_at 1 pull "$BUSYBOX" >/dev/null && crictl_at 2 pull "$BUSYBOX" >/dev/null
}

# remove_pods: removes every pod at the containerds; for teardown.
remove_pods() {
  local n
  for n in 1 2 3; do
    crictl_at "$n" rmp -af >/dev/null 2>&1 || true
  done
}

# in_background FILE COMMAND...: starts the command with its output in FILE; its pid is in $BACKGROUND.
in_background() {
  local file=$1
  shift
  (
    keep_no_files
    exec "$@" >"$file" 2>&1
  ) &
  BACKGROUND=$!
  echo "$BACKGROUND" >>"$BATS_TEST_TMPDIR/background"
}

# end_background: ends all background commands of the check; for teardown.
end_background() {
  [ ! -e "$BATS_TEST_TMPDIR/background" ] || xargs kill <"$BATS_TEST_TMPDIR/background" 2>/dev/null || true
}

# keep_as NAME / kept NAME: saves standard input, or prints it, for the other checks of the file.
keep_as() {
  cat >"$BATS_FILE_TMPDIR/$1"
}

kept() {
  cat "$BATS_FILE_TMPDIR/$1"
}

# refusal_at WHERE ARGUMENT...: runs crictl, which must fail, and prints the error without the time and the level.
refusal_at() {
  local out
  if out=$(crictl_at "$@" 2>&1 </dev/null); then
    fail "crictl ${*:2} at $1: expected a refusal, saw: $out"
    return
  fi
  sed -n 's/^time=.* level=\(fatal\|error\) msg=//p' <<<"$out" | tail -n 1
}

# same_refusal WHERE ARGUMENT...: checks that the call fails through criswitch with the containerd's error text.
same_refusal() {
  local direct through
  direct=$(refusal_at "$@") || return
  shift
  through=$(refusal_at criswitch "$@") || return
  [ -n "$direct" ] || fail "crictl $*: no reason in the direct refusal" || return
  equal "refusal of crictl $*" "$direct" "$through"
}

# same_outcome WHERE ARGUMENT...: checks that both calls succeed, or that both fail with the containerd's error text.
# Some results depend on the machine (cgroups, criu).
same_outcome() {
  local out
  if crictl_at "$@" >/dev/null 2>&1 </dev/null; then
    out=$(cri "${@:2}" 2>&1 </dev/null) || fail "crictl ${*:2}: works directly, but fails through criswitch: $out"
  else
    same_refusal "$@"
  fi
}

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

# equal WHAT EXPECTED SEEN: fails with both values unless they are equal.
equal() {
  [ "$2" = "$3" ] || fail "$1: expected <$2>, saw <$3>"
}

# has WHAT EXPECTED-PART SEEN: fails unless SEEN contains the part.
has() {
  [[ $3 == *"$2"* ]] || fail "$1: expected <$2> in: $3"
}

# lacks WHAT PART SEEN: fails if SEEN contains the part.
lacks() {
  [[ $3 != *"$2"* ]] || fail "$1: did not expect <$2> in: $3"
}
