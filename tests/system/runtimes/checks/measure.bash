# shellcheck shell=bash
# Compares `criswitch try --measure` with the files of the cgroups, of version 1 or 2, and of the processes.

# In seconds: the length of a window (each pod has at least two windows), the age of the pod's container when the shell
# reads the files, and the longest wait.
IDLE_S=8
AGE_S=3
LIMIT_S=120
# The largest difference of two readings of the memory, in percent, and of the processor time, in milliseconds: the
# kernel counts processes in ticks of 10 ms, and a shim has about ten.
MEMORY_PERCENT=10
CPU_MS=50

# sleeping: prints the ids of the container and the pod that are measured. The container of the preceding try does not
# live long enough to be printed.
sleeping() {
  local ids
  ids=$(cri ps -o json | jq -r --argjson now "$(date +%s)" --argjson age "$AGE_S" \
    '.containers[] | select($now - (.createdAt | tonumber) / 1e9 > $age) | "\(.id) \(.podSandboxId)"')
  [ -n "$ids" ] && echo "$ids"
}

# sleeps_or_has_ended: succeeds when a container is measured, or the measurement has ended; a condition for wait_for.
sleeps_or_has_ended() {
  sleeping || [ ! -e "/proc/$BACKGROUND" ]
}

# cgroups_of CONTROLLER ID...: prints the directories of the cgroups with these ids.
cgroups_of() {
  local id root=/sys/fs/cgroup/$1
  [ -d "$root" ] || root=/sys/fs/cgroup
  for id in "${@:2}"; do
    find "$root" -type d -path "*$id*"
  done
}

# working_sets ID...: prints the sum of the working sets of the cgroups, in bytes.
working_sets() {
  local cgroup inactive sum=0
  for cgroup in $(cgroups_of memory "$@"); do
    # In version 1 the line with `total` comes later, and has the cgroups below, too.
    inactive=$(awk '/^inactive_file/ {of = $2} /^total_inactive_file/ {of = $2} END {print of}' \
      "$cgroup/memory.stat")
    sum=$((sum + $(cat "$cgroup"/memory.{usage_in_bytes,current} 2>/dev/null) - inactive))
  done
  echo "$sum"
}

# cgroup_cpu ID...: prints the processor time of the cgroups, in milliseconds.
cgroup_cpu() {
  local cgroup sum=0
  for cgroup in $(cgroups_of cpuacct "$@"); do
    if [ -e "$cgroup/cpuacct.usage" ]; then
      sum=$((sum + $(<"$cgroup/cpuacct.usage") / 1000000))
    else
      sum=$((sum + $(awk '/^usage_usec/ {print $2}' "$cgroup/cpu.stat") / 1000))
    fi
  done
  echo "$sum"
}

# outside ID...: prints the pids of the shims and of their descendants that are in no cgroup with an id. gVisor has a
# shim for the pod and one for the container. Programs that a shim starts for a moment, such as `runsc state`, are too
# young to be listed.
outside() {
  local pids children pattern pid
  pattern=$(IFS='|' && echo "$*")
  pids=$(pgrep --older 1 -f "containerd-shim.*-id ($pattern)")
  children=$pids
  while children=$(pgrep --older 1 -P "$(paste -sd, <<<"$children")"); do
    pids+=$'\n'$children
  done
  for pid in $pids; do
    grep -qE ":(memory)?:.*($pattern)" "/proc/$pid/cgroup" || echo "$pid"
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

# has_ended: succeeds when the measurement has ended; a condition for wait_for. Until then it reads the memory of the
# processes outside again, because the garbage collection of a Go program, such as a shim, frees memory at any moment.
has_ended() {
  local sum
  [ -e "/proc/$BACKGROUND" ] || return 0
  if sum=$(memory_of "${pids[@]}" 2>/dev/null) && [ -d "/proc/${pids[0]}" ]; then
    echo "$sum" >>"$READINGS"
  fi
  return 1
}

# nearest NUMBER: prints the number of standard input that is nearest to NUMBER.
nearest() {
  awk -v to="$1" '{difference = $1 < to ? to - $1 : $1 - to}
    NR == 1 || difference < least {least = difference; found = $1}
    END {print found}'
}

# read_files ID...: writes a line to $FIRST: the memory of the cgroups and of the processes outside, the processor time of
# both, and the pids of the processes outside. Fails if one of the processes ends meanwhile; a condition for wait_for.
read_files() {
  local pids memory cpu
  mapfile -t pids < <(outside "$@")
  memory=$(memory_of "${pids[@]}") && cpu=$(cpu_of "${pids[@]}") &&
    echo "$(working_sets "$@") $memory $(($(cgroup_cpu "$@") + cpu)) ${pids[*]}" >"$FIRST" &&
    [ -d "/proc/${pids[0]}" ]
}

# measure HANDLER: measures a pod, and reads its files meanwhile. Sets pids, in_cgroups and cpu to what the files show,
# outside to the reading that is nearest to the result, and container to the results.
measure() {
  local cost out=$BATS_TEST_TMPDIR/$1.json ids memory
  FIRST=$BATS_TEST_TMPDIR/$1.first
  READINGS=$BATS_TEST_TMPDIR/$1.readings
  in_background "$out" "$CRISWITCH" try --config "$DIR/criswitch.toml" "$1" --measure --runs 1 --idle "${IDLE_S}s" \
    -o json
  wait_for "$LIMIT_S" "the container of $1" sleeps_or_has_ended
  read -ra ids <<<"$(sleeping)"
  [ -n "${ids[*]}" ] || fail "$(cat "$out")"
  wait_for "$LIMIT_S" "files of processes that have not ended" read_files "${ids[@]}"
  read -r in_cgroups memory cpu pids <"$FIRST"
  read -ra pids <<<"$pids"
  echo "$memory" >"$READINGS"
  PAUSE_S=1 wait_for "$LIMIT_S" "the end of the measurement of $1" has_ended
  cost=$(jq -c '.tries[0].cost' "$out")
  echo "$cost" | keep_as "$1.json"
  container=$(jq -c .container <<<"$cost")
  outside=$(nearest "$(jq .outsideMemoryBytes.median <<<"$container")" <"$READINGS")
}

# compare HANDLER: measures a pod, and compares the results with its files.
compare() {
  local pids in_cgroups outside cpu container
  measure "$1"
  near "memory in the cgroups of $1" "$in_cgroups" "$(jq .cgroupMemoryBytes.median <<<"$container")" \
    $((in_cgroups * MEMORY_PERCENT / 100))
  near "memory of ${#pids[@]} processes outside for $1" "$outside" \
    "$(jq .outsideMemoryBytes.median <<<"$container")" $((outside * MEMORY_PERCENT / 100))
  # The shell reads about half a window after the start.
  near "processor time of $1 in ms" "$cpu" "$(jq --argjson idle "$IDLE_S" \
    '.startCpuMilliseconds.median + .idleCpuMillicores.median * $idle / 2 | round' <<<"$container")" \
    $((CPU_MS + cpu / 10))
}
