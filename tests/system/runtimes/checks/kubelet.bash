# shellcheck shell=bash
# Shared by the checks with a kubelet: the kubelet, its pods, and its answers. Without a cluster, the kubelet reads pods
# from files.

# start_kubelet WHERE [ARGUMENT...]: starts a kubelet at a containerd (containerd-1, containerd-2) or a criswitch (live,
# cluster).
start_kubelet() {
  # The kubelet creates the cgroups of its pods below a cgroup that must exist.
  local cgroup=/${DIR##*/} controller
  for controller in /sys/fs/cgroup/*/; do
    mkdir -p "$controller$cgroup" 2>/dev/null || true
  done
  [ -e "$BATS_FILE_TMPDIR/port" ] || shuf -i 20000-29999 -n 1 | keep_as port
  render kubelet.yaml "$DIR/kubelet.yaml" "SOCKET=$DIR/$1.sock" "PORT=$(kept port)" "CGROUP=$cgroup"
  start_program kubelet kubelet --config "$DIR/kubelet.yaml" --root-dir "$DIR/kubelet" --cert-dir "$DIR/kubelet/pki" \
    --hostname-override node --v=2 "${@:2}"
  wait_for 60 "the kubelet" kubelet_says healthz
}

stop_kubelet() {
  end_program TERM kubelet
}

# kubelet_says PATH [CURL-ARGUMENT...]: calls the kubelet's API.
kubelet_says() {
  curl -ksS --fail-with-body --max-time 120 "https://127.0.0.1:$(kept port)/$1" "${@:2}"
}

# static_pod NAME: writes the file of a static pod.
static_pod() {
  render static-pod.yaml "$DIR/manifests/.$1" "NAME=$1"
  mv "$DIR/manifests/.$1" "$DIR/manifests/$1.yaml"
}

# states: prints a line for each of the kubelet's pods, with the pod's name and containers as the kubelet reports them.
states() {
  kubelet_says pods | jq -r '.items[] | "\(.metadata.name | rtrimstr("-node")) \(.status | [.phase, .podIP,
    (.containerStatuses[]? | .containerID, .restartCount, .state)] | tojson)"' | sort
}

# run_just NAME...: succeeds when exactly these pods of the kubelet run; a condition for wait_for.
run_just() {
  local seen
  seen=$(states) || return
  echo "$seen"
  [ "$(sed -n 's/ \["Running",.*"running":.*//p' <<<"$seen")" = "$(printf '%s\n' "$@")" ] &&
    [ "$(wc -l <<<"$seen")" = $# ]
}

# until_running NAME...: waits until exactly these pods run; the names are in alphabetical order.
until_running() {
  wait_for 90 "the pods $*" run_just "$@"
}

# can_be_asked NAME: checks that the kubelet reads the pod's log and runs a command in the pod.
can_be_asked() {
  equal "$1: log" begun "$(kubelet_says "containerLogs/suite/$1-node/main")"
  equal "$1: a command" hi "$(kubelet_says "run/suite/$1-node/main?cmd=echo%20hi" -X POST)"
}

# has_run_at N NAME: checks that containerd N has the pod.
has_run_at() {
  [ -n "$(crictl_at "$1" pods -q --name "^$2-node\$")" ] || fail "$2 is not at containerd $1"
}
