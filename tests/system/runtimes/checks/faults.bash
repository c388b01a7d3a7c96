# shellcheck shell=bash
# Shared by the fault checks: a steady load of calls, the results of the load, and the states of the backends.

# The time limit of a load, in seconds. Most checks end their load earlier.
LOAD_LIMIT_S=900
# The longest time between two replies for pods that a fault does not affect. The load makes ten calls a second or more,
# so most of this time is a reserve for a busy machine. It is shorter than a hang.
GAP_LIMIT_MS=20000

# A jq filter: the call ended because of its deadline.
# shellcheck disable=SC2034 # The checks use it.
TIMED_OUT='(.code == "DeadlineExceeded" or .code == "Cancelled")'

# name_of N: prints criswitch's name for containerd N.
name_of() {
  if [ "$1" = 1 ]; then echo old; else echo new; fi
}

# run_pods: creates two pods, each with one container, on each containerd. Saves them as `pods`, the load's argument.
run_pods() {
  local name handler pod container
  for name in crun-1 crun-2 runc-1 gvisor-1; do
    handler=${name%-*}
    pod=$(run_pod "$handler" "$name") || return
    container=$(run_container "$pod" "$name" main 'exec sleep 1000000') || return
    echo "$(name_of "$(owner_of "$handler")")=$pod/$container"
  done | keep_as pods
}

# what_runs: prints id, process and state of each pod and container, from both containerds.
what_runs() {
  local n
  for n in 1 2; do
    ctr --address "$DIR/containerd-$n.sock" --namespace k8s.io containers ls -q | sort || return
    ctr --address "$DIR/containerd-$n.sock" --namespace k8s.io tasks ls | sort || return
  done
}

# start_load [SWITCH [HANDLER...]]: starts a load that writes its lines to $CALLS, and waits until a call of every kind
# has succeeded. The load also creates and removes pods of each HANDLER.
start_load() {
  CALLS=$BATS_TEST_TMPDIR/calls
  SWITCH=${1:-criswitch}
  in_background "$CALLS" "$LOAD" "$DIR/$SWITCH.sock" "$LOAD_LIMIT_S" "$BATS_FILE_TMPDIR/pods" "${@:2}"
  answers_new_calls
}

# answers_new_calls: waits until a call of every kind that began after this moment has succeeded.
answers_new_calls() {
  local now
  now=$(now_ms)
  wait_for 60 "answers to all kinds of calls" has_answers "$now"
}

# has_answers MS: succeeds when a call of every kind that began at MS or later has succeeded; a condition for wait_for.
has_answers() {
  local seen
  seen=$(calls "$OK and .backend != \"created\" and .began >= $1" | jq -r '"\(.rpc) \(.backend)"' | sort -u)
  echo "$seen"
  # The load has two RPCs for the node, two lists, and three RPCs for the pods of each backend.
  [ "$(wc -l <<<"$seen")" = $((4 + 3 * $(kept pods | sed -n 's/^\([^?].*\)=.*/\1/p' | sort -u | wc -l))) ]
}

# end_load: ends the load and prints criswitch's resident memory.
end_load() {
  kill "$BACKGROUND" || fail "the load ended by itself: $(tail -n 1 "$CALLS")" || return
  echo "# $(wc -l <"$CALLS") calls; resident memory of criswitch then: $(resident_bytes "$SWITCH") bytes" >&3
}

# resident_bytes NAME: prints the resident memory of a program, in bytes.
resident_bytes() {
  echo $(($(awk '/^VmRSS:/ {print $2}' "/proc/$(cat "$DIR/$1.pid")/status") * 1024))
}

now_ms() {
  date +%s%3N
}

OK='.code == "Ok"'

# calls FILTER: prints the load's calls for which the filter is true.
calls() {
  # The last line may be incomplete.
  jq -cR "fromjson? | select($1)" "$CALLS"
}

# none WHAT FILTER: fails if the filter is true for a call.
none() {
  local seen
  seen=$(calls "$2") || return
  [ -z "$seen" ] || fail "$1: $(wc -l <<<"$seen") of $(wc -l <"$CALLS") calls, the first: $(head -n 3 <<<"$seen")"
}

# some WHAT FILTER: fails unless the filter is true for a call.
some() {
  [ -n "$(calls "$2")" ] || fail "$1: none of $(wc -l <"$CALLS") calls"
}

# longest_gap FILTER: prints the longest time in ms from one successful reply to the next, among calls for which the
# filter is true.
longest_gap() {
  calls "$OK and ($1)" | jq -s 'map(.ended) | sort | [.[1:], .[:-1]] | transpose | map(.[0] - .[1]) | max'
}

# nobody_harmed: checks what holds for every load and every fault. Wrong replies about the node do not count, because
# the node may become not ready while the default backend hangs.
nobody_harmed() {
  none "not found" '.code == "NotFound"'
  none "a list that lacks something, or a wrong state" '.backend != "node" and .code == "Ok" and (.right | not)'
}

# undisturbed BACKEND...: checks that no call for these backends failed, and that no gap between two replies is longer
# than GAP_LIMIT_MS. The name `all` stands for calls to all backends.
undisturbed() {
  local backend gap
  for backend in "$@"; do
    none "failed calls of $backend" ".backend == \"$backend\" and .code != \"Ok\"" || return
    gap=$(longest_gap ".backend == \"$backend\"")
    echo "# longest time between two answers of $backend: $gap ms" >&3
    [ "$gap" -le "$GAP_LIMIT_MS" ] || fail "longest time between two answers of $backend: $gap ms" || return
  done
}

# same_as_before: checks that both containerds have exactly the earlier pods and containers, and that criswitch lists
# them.
same_as_before() {
  # A busy containerd lists a task with a slow shim as UNKNOWN for a moment, so the check tries again.
  wait_for 60 "the containerds to run the same pods as before" runs_as_before || return
  equal "pods" "$(kept pods | sed 's/.*=//; s,/.*,,' | sort)" "$(cri pods -q --no-trunc | sort)"
  equal "containers" "$(kept pods | sed 's,.*/,,' | sort)" "$(cri ps -q --no-trunc | sort)"
}

# runs_as_before: succeeds when the containerds run exactly the earlier pods; a condition for wait_for.
runs_as_before() {
  local seen
  seen=$(what_runs) || return
  diff <(kept before) <(echo "$seen")
}

# backend_at SWITCH NAME: prints the state of a backend as criswitch reports it. `status` also exits with 1 if a backend
# has a problem.
backend_at() {
  local state
  state=$("$CRISWITCH" status --json --socket "$DIR/$1.sock") || [ $? = 1 ] || { echo "$state"; return 1; }
  jq -c --arg name "$2" '.backends[] | select(.name == $name)' <<<"$state"
}

# is_backend NAME STATE: succeeds when the backend is in this state; a condition for wait_for.
is_backend() {
  local seen
  seen=$(backend_at "$SWITCH" "$1") || { echo "$seen"; return 1; }
  echo "$seen"
  [ "$(jq -r .state <<<"$seen")" = "$2" ]
}

# transitions NAME: prints how often the state of a backend has changed since the start of criswitch.
transitions() {
  backend_at criswitch "$1" | jq .transitions
}

# probe_says NAME PART: checks the line of a backend in the output of `check --probe`, which must fail.
probe_says() {
  local out
  if out=$("$CRISWITCH" check --probe --config "$DIR/criswitch.toml" 2>&1); then
    fail "check --probe found no problem: $out"
    return
  fi
  has "check --probe" "$2" "$(grep "^backend \"$1\" " <<<"$out")"
}

# no_exec_in_gvisor: succeeds when no exec runs in gVisor; a condition for wait_for. If gVisor's shim cannot report the
# end of an exec to containerd, the shim panics and ends its container.
no_exec_in_gvisor() {
  ! pgrep --full 'runsc.* exec ' >/dev/null
}

# signal SIGNAL N: sends the signal to a containerd.
signal() {
  kill -"$1" "$(cat "$DIR/containerd-$2.pid")"
}

# heal: restarts everything that a check has stopped; for teardown.
heal() {
  local n
  for n in 1 2; do
    signal CONT "$n" 2>/dev/null || true
    [ ! -e "$DIR/containerd-$n.exit" ] || start_containerd "$n" || true
  done
  [ ! -e "$DIR/criswitch.exit" ] || start_switch criswitch
}

# failed_for_good BACKEND: checks that no call for the backend succeeded after a call of the same RPC had failed. It
# checks each RPC separately, because the cached list of pods may be older than the cached list of containers.
failed_for_good() {
  local seen
  seen=$(calls ".backend == \"$1\"" | jq -sc 'group_by(.rpc)[] |
    (map(select(.code != "Ok").ended) | min) as $failed |
    map(select($failed and .code == "Ok" and .began > $failed))[]') || return
  [ -z "$seen" ] || fail "calls that went well after others had failed: $(head -n 3 <<<"$seen")"
}
