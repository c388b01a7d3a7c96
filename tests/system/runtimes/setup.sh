# shellcheck shell=bash
# Starts the real programs in $DIR: the registry, the containerds, and criswitch in front of them. Runs inside the
# namespaces of run.sh, so all processes and mounts end with them.

# wait_for SECONDS WHAT COMMAND...: runs COMMAND until it succeeds, with a pause of PAUSE_S. It needs at most SECONDS on a
# quiet machine. After three times as long it prints WHAT and the last output, and fails.
wait_for() {
  local end=$((SECONDS + 3 * $1)) what=$2 out
  shift 2
  until out=$("$@" 2>&1); do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "waited in vain for $what; last answer: $out" >&2
      return 1
    fi
    sleep "${PAUSE_S:-0.1}"
  done
}

# render FILE TARGET [NAME=VALUE...]: replaces @DIR@ and the given names in a template of config/.
render() {
  local file=$1 target=$2 pair
  local edits=(-e "s|@DIR@|$DIR|g")
  shift 2
  for pair in "$@"; do
    edits+=(-e "s|@${pair%%=*}@|${pair#*=}|g")
  done
  sed "${edits[@]}" "$REAL/config/$file" >"$target"
}

# crictl_at WHERE ARGUMENT...: runs crictl at a containerd (1, 2, 3), at CRI-O (crio), or at a criswitch (criswitch,
# twins, idle). A call that hangs fails: a client of events, for example, would otherwise wait for ever.
crictl_at() {
  local config=$DIR/crictl-$1.yaml
  shift
  timeout 10m crictl --config "$config" "$@"
}

start_all() {
  prepare_machine || return
  start_registry || return
  start_containerd 1 || return
  start_containerd 2 || return
  start_containerd 3 || return
  start_switch criswitch
}

prepare_machine() {
  # Shims, runc and CNI always keep state under /run, so the suite mounts a separate /run.
  mount -t tmpfs tmpfs /run || return
  # crun treats a hybrid mount as cgroup v2.
  ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified || return
  ip link set lo up
}

start_registry() {
  local image
  render registry.yml "$DIR/registry.yml"
  docker-registry serve "$DIR/registry.yml" >"$DIR/registry.log" 2>&1 &
  wait_for 60 "the registry" grep -q 'listening on 127' "$DIR/registry.log" || return
  REGISTRY=$(registry_address)
  for image in pause:1 busybox:1 busybox:2; do
    skopeo copy -q --dest-tls-verify=false "oci:$IMAGES/$image" "docker://$REGISTRY/$image" || return
  done
  mkdir -p "$DIR/certs.d/registry.test"
  printf 'server = "http://%s"\n\n[host."http://%s"]\ncapabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" \
    >"$DIR/certs.d/registry.test/hosts.toml"
}

# registry_address: prints host and port of the registry.
registry_address() {
  sed -n 's/.*listening on \(127[0-9.:]*\).*/\1/p' "$DIR/registry.log" | head -n 1
}

# start_containerd N [FOLDER]: starts containerd N, or restarts it after its end. Containerd 1 is Debian's 1.6, all others
# are 2.x, or of the folder with the programs of an older version.
start_containerd() {
  configure_containerd "$@" && launch_containerd "$@"
}

configure_containerd() {
  local n=$1 version=2.x
  # shellcheck disable=SC2153 # run.sh exports it.
  local bridge=$BRIDGE-$n
  if [ "$n" = 1 ] || [[ ${2:-} == */containerd-1.* ]]; then version=1.6; fi
  mkdir -p "$DIR/cni-$n" "$DIR/containerd-$n"
  render cni.conflist "$DIR/cni-$n/10-bridge.conflist" "BRIDGE=$bridge" "SUBNET=$SUBNET_PREFIX.$n.0/24"
  render "containerd-$version.toml" "$DIR/containerd-$n.toml" "N=$n"
  render runsc.toml "$DIR/runsc-$n.toml" "N=$n"
  render crictl.yaml "$DIR/crictl-$n.yaml" "SOCKET=$DIR/containerd-$n.sock"
}

# launch_containerd N [FOLDER]: starts containerd N with its existing configuration.
launch_containerd() {
  local n=$1 binary
  binary=${2:-$(dirname "$(command -v containerd)")}/containerd
  [ "$n" != 1 ] || binary=/usr/bin/containerd
  # Each containerd finds the shims of its version first.
  start_program "containerd-$n" env PATH="$(dirname "$binary"):$PATH" "$binary" --config "$DIR/containerd-$n.toml"
  wait_for 60 "containerd $n" network_ready "$n"
}

network_ready() {
  local info
  info=$(crictl_at "$1" info) || { echo "$info"; return 1; }
  jq -e '.status.conditions | any(.type == "NetworkReady" and .status)' <<<"$info"
}

# start_switch NAME: starts a criswitch with config/NAME.toml and waits for it.
start_switch() {
  launch_switch "$1"
  wait_for 60 "criswitch ($1)" crictl_at "$1" version
}

# launch_switch NAME: starts a criswitch with config/NAME.toml without waiting.
launch_switch() {
  render "$1.toml" "$DIR/$1.toml"
  render crictl.yaml "$DIR/crictl-$1.yaml" "SOCKET=$DIR/$1.sock"
  start_program "$1" "${CRISWITCH}d" --config "$DIR/$1.toml"
}

# start_program NAME COMMAND...: starts the command in the background. Its pid is in $DIR/NAME.pid, its output in
# $DIR/NAME.log, and after its end the exit code in $DIR/NAME.exit.
start_program() {
  local name=$1
  shift
  rm -f "$DIR/$name".{pid,exit}
  (
    keep_no_files
    # bats ends a subshell at the first failure.
    set +e
    "$@" >>"$DIR/$name.log" 2>&1 &
    echo $! >"$DIR/$name.pid"
    wait $! 2>/dev/null
    echo $? >"$DIR/$name.exit"
  ) &
}

# keep_no_files: closes all files except standard input, output and error in a subshell that keeps running. Otherwise
# bats would wait for this subshell, because it would hold files of bats open.
keep_no_files() {
  local fd
  for fd in "/proc/$BASHPID/fd/"*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
  done
}

# stop_switch NAME: ends a criswitch with SIGTERM and prints the exit code.
stop_switch() {
  end_program TERM "$1" || return
  cat "$DIR/$1.exit"
}

# end_remaining SIGNAL NAME...: ends those of the programs that have started and still run, for the clean-up of checks.
end_remaining() {
  local name
  for name in "${@:2}"; do
    [ ! -e "$DIR/$name.pid" ] || [ -e "$DIR/$name.exit" ] || end_program "$1" "$name" || true
  done
}

# end_program SIGNAL NAME: sends the signal to a program and waits for the program's end.
end_program() {
  wait_for 60 "the pid of $2" test -s "$DIR/$2.pid" || return
  kill -"$1" "$(cat "$DIR/$2.pid")" || return
  wait_for 60 "$2 to end" test -s "$DIR/$2.exit"
}
