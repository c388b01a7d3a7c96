# shellcheck shell=bash
# What the checks with a kubelet share: it, its pods, and what it says of them. Without a cluster its pods are files.

# start_kubelet WHERE [ARGUMENT...]: one that asks a containerd (containerd-1, containerd-2) or a switch (live, cluster).
start_kubelet() {
  # The kubelet makes the cgroups of its pods in one that must be there.
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

# kubelet_says PATH [CURL-ARGUMENT...]: its own API.
kubelet_says() {
  curl -ksSf --max-time 20 "https://127.0.0.1:$(kept port)/$1" "${@:2}"
}

# static_pod NAME: the kubelet is to run it.
static_pod() {
  render static-pod.yaml "$DIR/manifests/.$1" "NAME=$1"
  mv "$DIR/manifests/.$1" "$DIR/manifests/$1.yaml"
}

# states: a line for each of the kubelet's pods: its name, and its container as the kubelet tells it.
states() {
  kubelet_says pods | jq -r '.items[] | "\(.metadata.name | rtrimstr("-node")) \(.status | [.phase, .podIP,
    (.containerStatuses[]? | .containerID, .restartCount, .state)] | tojson)"' | sort
}

# run_just NAME...: for wait_for; these pods run, and the kubelet has no others.
run_just() {
  local seen
  seen=$(states) || return
  echo "$seen"
  [ "$(sed -n 's/ \["Running",.*"running":.*//p' <<<"$seen")" = "$(printf '%s\n' "$@")" ] &&
    [ "$(wc -l <<<"$seen")" = $# ]
}

# until_running NAME...: in alphabetical order.
until_running() {
  wait_for 90 "the pods $*" run_just "$@"
}

# can_be_asked NAME: the kubelet gets at its log, and runs a command in it.
can_be_asked() {
  equal "$1: log" begun "$(kubelet_says "containerLogs/suite/$1-node/main")"
  equal "$1: a command" hi "$(kubelet_says "run/suite/$1-node/main?cmd=echo%20hi" -X POST)"
}

# has_run_at N NAME: the containerd has the pod.
has_run_at() {
  [ -n "$(crictl_at "$1" pods -q --name "^$2-node\$")" ] || fail "$2 is not at containerd $1"
}
