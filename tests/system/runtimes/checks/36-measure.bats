# `criswitch try --measure` compared with the files of the cgroups and of the processes, which the shell reads during
# the measurement. The shell finds the processes as the descendants of the shim; criswitch finds them by their
# arguments.

load helpers.bash
load try.bash

# The length of a window, of which each pod has at least two, and the age of its container when the shell reads the files, in seconds.
IDLE_S=4
AGE_S=3
# The largest difference of two readings of the memory, in percent, and of the processor time, in milliseconds: the
# kernel counts processes in ticks of 10 ms, and a shim has about ten.
MEMORY_PERCENT=10
CPU_MS=50

setup_file() {
  have_images
  crictl_at 3 pull "$BUSYBOX" >/dev/null
}

teardown() {
  end_background
  remove_pods
}

# sleeping: prints the ids of the container and the pod that are measured. The container of the try before does not live
# so long.
sleeping() {
  local ids
  ids=$(cri ps -o json | jq -r --argjson now "$(date +%s)" --argjson age "$AGE_S" \
    '.containers[] | select($now - (.createdAt | tonumber) / 1e9 > $age) | "\(.id) \(.podSandboxId)"')
  [ -n "$ids" ] && echo "$ids"
}

# has_pod: succeeds when the containerd of gVisor has a pod; a condition for wait_for.
has_pod() {
  [ -n "$(pods_at 2)" ]
}

# cgroups_of CONTROLLER ID...: prints the directories of the cgroups with these ids.
cgroups_of() {
  local id
  for id in "${@:2}"; do
    find "/sys/fs/cgroup/$1" -type d -path "*$id*"
  done
}

# working_sets ID...: prints the sum of the working sets of the cgroups, in bytes.
working_sets() {
  local cgroup inactive sum=0
  for cgroup in $(cgroups_of memory "$@"); do
    inactive=$(awk '/^total_inactive_file/ {print $2}' "$cgroup/memory.stat")
    sum=$((sum + $(<"$cgroup/memory.usage_in_bytes") - inactive))
  done
  echo "$sum"
}

# cgroup_cpu ID...: prints the processor time of the cgroups, in milliseconds.
cgroup_cpu() {
  local cgroup sum=0
  for cgroup in $(cgroups_of cpuacct "$@"); do
    sum=$((sum + $(<"$cgroup/cpuacct.usage") / 1000000))
  done
  echo "$sum"
}

# outside ID...: prints the pids of the shims and of their descendants that are in no cgroup with an id. gVisor has a
# shim for the pod and one for the container.
outside() {
  local pids children pattern pid
  pattern=$(IFS='|' && echo "$*")
  pids=$(pgrep -f "containerd-shim.*-id ($pattern)")
  children=$pids
  while children=$(pgrep -P "$(paste -sd, <<<"$children")"); do
    pids+=$'\n'$children
  done
  for pid in $pids; do
    grep -qE ":memory:.*($pattern)" "/proc/$pid/cgroup" || echo "$pid"
  done
}

# memory_of PID...: prints the memory of the processes in bytes, with a share of the pages that processes share.
memory_of() {
  local pid sum=0
  for pid in "$@"; do
    sum=$((sum + $(awk '/^Pss:/ {print $2 * 1024}' "/proc/$pid/smaps_rollup")))
  done
  echo "$sum"
}

# cpu_of PID...: prints the processor time of the processes and of their ended children, in milliseconds.
cpu_of() {
  local pid sum=0
  for pid in "$@"; do
    sum=$((sum + $(sed 's/.*) //' "/proc/$pid/stat" | awk '{print ($12 + $13 + $14 + $15) * 10}')))
  done
  echo "$sum"
}

# near WHAT EXPECTED SEEN MARGIN: fails if two numbers differ by more than the margin.
near() {
  local difference=$(($2 - $3))
  echo "# $1: read $2, measured $3" >&3
  [ "${difference#-}" -le "$4" ] || fail "$1: read $2, measured $3, margin $4"
}

# compare HANDLER: measures a pod, reads its files meanwhile, and compares the results.
compare() {
  local cost out=$BATS_TEST_TMPDIR/$1.json ids pids in_cgroups outside cpu container
  in_background "$out" "$CRISWITCH" try --config "$DIR/criswitch.toml" "$1" --measure --runs 1 --idle "${IDLE_S}s" \
    -o json
  wait_for 60 "the container of $1" sleeping
  read -ra ids <<<"$(sleeping)"
  mapfile -t pids < <(outside "${ids[@]}")
  in_cgroups=$(working_sets "${ids[@]}")
  outside=$(memory_of "${pids[@]}")
  cpu=$(($(cgroup_cpu "${ids[@]}") + $(cpu_of "${pids[@]}")))
  [ -d "/proc/${pids[0]}" ] || fail "$1: the pod has ended before the files were read"
  wait_for 60 "the end of the measurement of $1" test ! -e "/proc/$BACKGROUND"
  cost=$(jq -c '.tries[0].cost' "$out")
  echo "$cost" | keep_as "$1.json"
  container=$(jq -c .container <<<"$cost")
  near "memory in the cgroups of $1" "$in_cgroups" "$(jq .cgroupMemoryBytes.median <<<"$container")" \
    $((in_cgroups * MEMORY_PERCENT / 100))
  near "memory of ${#pids[@]} processes outside for $1" "$outside" \
    "$(jq .outsideMemoryBytes.median <<<"$container")" $((outside * MEMORY_PERCENT / 100))
  # The shell reads about half a window after the start.
  near "processor time of $1 in ms" "$cpu" "$(jq --argjson idle "$IDLE_S" \
    '.startCpuMilliseconds.median + .idleCpuMillicores.median * $idle / 2 | round' <<<"$container")" \
    $((CPU_MS + cpu / 10))
  nothing_left
}

@test "the figures of runc, crun and gVisor are those of the cgroups and processes" {
  compare runc
  compare crun
  compare gvisor
}

@test "shim, sentry and gofer are counted, and nothing else" {
  names() { kept "$1.json" | jq -r ".$2.outsideProcesses | join(\" \")"; }
  for pod in empty container; do
    equal "processes of runc" containerd-shim-runc-v2 "$(names runc "$pod")"
    equal "processes of crun" containerd-shim-runc-v2 "$(names crun "$pod")"
    for name in containerd-shim-runsc-v1 runsc-sandbox runsc-gofer; do
      has "processes of gvisor" "$name" "$(names gvisor "$pod")"
    done
    for name in criswitch crictl bash; do
      lacks "processes of gvisor" "$name" "$(names gvisor "$pod")"
    done
  done
}

@test "the overhead of gVisor is at least three times that of runc" {
  mebibytes() { kept "$1.json" | jq -r '.overhead.memory | rtrimstr("Mi")'; }
  [ "$(mebibytes gvisor)" -ge $((3 * $(mebibytes runc))) ] || fail "$(mebibytes gvisor) Mi, $(mebibytes runc) Mi"
}

@test "measure --all compares the handlers" {
  out=$(try_at criswitch --all --measure --runs 1)
  for handler in $HANDLERS; do
    for pod in empty "1 container"; do
      grep -qE "^$handler +$pod +[0-9]+\.[0-9] \(" <<<"$out" || fail "$handler, $pod: $out"
    done
  done
  nothing_left
}

@test "measure --write changes one row, and manifests shows the overhead" {
  start_switch try
  cp "$DIR/try.toml" "$BATS_TEST_TMPDIR/before"
  out=$(try_at try kata --measure --runs 2 --write)
  row=$(sed -n 's/^  row  *//p' <<<"$out")
  [[ $row == 'overhead = { '*'memory = "'*'Mi" }' ]] || fail "row: $row"
  sed "s/^kata = .*/kata = { backend = \"bare\", handler = \"runc\", $row }/" "$BATS_TEST_TMPDIR/before" |
    diff - "$DIR/try.toml"
  memory=$(sed -n 's/.*memory = "\(.*\)" }$/\1/p' <<<"$row")
  has "manifests" "memory: $memory" "$("$CRISWITCH" manifests --config "$DIR/try.toml")"
  "$CRISWITCH" check --config "$DIR/try.toml" >/dev/null
  nothing_left
  equal "exit code of criswitch" 0 "$(stop_switch try)"
}

@test "Ctrl-C during a measurement removes the pod and writes nothing" {
  cp "$DIR/criswitch.toml" "$BATS_TEST_TMPDIR/before"
  in_background "$BATS_TEST_TMPDIR/out" "$CRISWITCH" try --config "$DIR/criswitch.toml" gvisor --measure --write
  wait_for 60 "the first run" grep -q "run 1 of 5" "$BATS_TEST_TMPDIR/out"
  wait_for 20 "the next pod" has_pod
  kill -INT "$BACKGROUND"
  wait_for 60 "the end of the process" test ! -e "/proc/$BACKGROUND"
  has "output" "failed: interrupted" "$(cat "$BATS_TEST_TMPDIR/out")"
  nothing_left
  diff "$BATS_TEST_TMPDIR/before" "$DIR/criswitch.toml"
}
