# shellcheck shell=bash
# Starts the real programs in $DIR: the registry, two containerds, and the switch in front of them.
# Runs inside the namespaces that run.sh makes, so whatever is started or mounted here ends with them.

# wait_for SECONDS WHAT COMMAND...: runs COMMAND until it succeeds; says what was awaited and the last output if it
# never does.
wait_for() {
  local end=$((SECONDS + $1)) what=$2 out
  shift 2
  until out=$("$@" 2>&1); do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "waited in vain for $what; last answer: $out" >&2
      return 1
    fi
    sleep 0.1
  done
}

# render FILE TARGET [NAME=VALUE...]: fills @DIR@ and the names given into a template of config/.
render() {
  local file=$1 target=$2 pair
  local edits=(-e "s|@DIR@|$DIR|g")
  shift 2
  for pair in "$@"; do
    edits+=(-e "s|@${pair%%=*}@|${pair#*=}|g")
  done
  sed "${edits[@]}" "$REAL/config/$file" >"$target"
}

# crictl_at switch|1|2 ARGUMENT...: crictl, through the switch or directly at a containerd.
crictl_at() {
  local config=$DIR/crictl-$1.yaml
  shift
  crictl --config "$config" "$@"
}

start_all() {
  prepare_machine || return
  start_registry || return
  start_containerd 1 /usr/bin/containerd || return
  start_containerd 2 containerd || return
  render crictl.yaml "$DIR/crictl-switch.yaml" "SOCKET=$DIR/criswitch.sock"
  render criswitch.toml "$DIR/criswitch.toml"
  render runsc.toml "$DIR/runsc.toml"
  start_switch
}

prepare_machine() {
  # Shims, runc and CNI keep state under /run whatever containerd is told: give them one of our own.
  mount -t tmpfs tmpfs /run || return
  # crun takes a hybrid mount for cgroup v2.
  ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified || return
  ip link set lo up
}

start_registry() {
  local name
  render registry.yml "$DIR/registry.yml"
  docker-registry serve "$DIR/registry.yml" >"$DIR/registry.log" 2>&1 &
  wait_for 30 "the registry" grep -q 'listening on 127' "$DIR/registry.log" || return
  REGISTRY=$(sed -n 's/.*listening on \(127[0-9.:]*\).*/\1/p' "$DIR/registry.log" | head -n 1)
  for name in pause busybox; do
    skopeo copy -q --dest-tls-verify=false "oci:$IMAGES/$name:1" "docker://$REGISTRY/$name:1" || return
  done
  mkdir -p "$DIR/certs.d/registry.test"
  printf 'server = "http://%s"\n\n[host."http://%s"]\ncapabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" \
    >"$DIR/certs.d/registry.test/hosts.toml"
}

# start_containerd N BINARY
start_containerd() {
  # shellcheck disable=SC2153 # run.sh exports it.
  local n=$1 binary=$2 bridge=$BRIDGE-$1
  mkdir -p "$DIR/cni-$n"
  render cni.conflist "$DIR/cni-$n/10-bridge.conflist" "BRIDGE=$bridge" "SUBNET=$SUBNET_PREFIX.$n.0/24"
  render "containerd-$n.toml" "$DIR/containerd-$n.toml"
  render crictl.yaml "$DIR/crictl-$n.yaml" "SOCKET=$DIR/containerd-$n.sock"
  # Each finds the shims of its own version first.
  PATH=$(dirname "$(command -v "$binary")"):$PATH \
    "$binary" --config "$DIR/containerd-$n.toml" >"$DIR/containerd-$n.log" 2>&1 &
  wait_for 30 "containerd $n" network_ready "$n"
}

network_ready() {
  crictl_at "$1" info | jq -e 'all(.status.conditions[]; .status or .type == "ContainerdHasNoDeprecationWarnings")'
}

# start_switch: leaves its pid in $DIR/switch.pid and, when it has ended, its exit code in $DIR/switch.exit.
start_switch() {
  rm -f "$DIR"/switch.{pid,exit}
  (
    "$CRISWITCH" serve --config "$DIR/criswitch.toml" >>"$DIR/switch.log" 2>&1 3>&- &
    echo $! >"$DIR/switch.pid"
    wait $!
    echo $? >"$DIR/switch.exit"
  ) 3>&- &
  wait_for 30 "the switch" crictl_at switch version
}

# stop_switch: asks it to end and prints its exit code.
stop_switch() {
  kill -TERM "$(cat "$DIR/switch.pid")" || return
  wait_for 20 "the switch to end" test -e "$DIR/switch.exit" || return
  cat "$DIR/switch.exit"
}
