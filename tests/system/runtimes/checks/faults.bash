# shellcheck shell=bash
# What the checks of faults share: a steady load of calls, what it saw, and the states of the backends.

# The longest that a load lasts, in seconds: it ends by itself if a check does not end it.
LOAD_LIMIT_S=180
# The longest time between two answers to the pods that a fault does not concern. They are asked ten times a second or
# more; what is left is for a busy machine.
GAP_LIMIT_MS=4000

# jq: a call that ended for the client's own reasons.
# shellcheck disable=SC2034 # The checks use it.
TIMED_OUT='(.code == "DeadlineExceeded" or .code == "Cancelled")'

# name_of N: what the switch calls a containerd.
name_of() {
  if [ "$1" = 1 ]; then echo old; else echo new; fi
}

# run_pods: two on each containerd behind the switch, one container in each; the load's arguments are kept as `pods`.
run_pods() {
  local name handler pod container
  for name in crun-1 crun-2 runc-1 gvisor-1; do
    handler=${name%-*}
    pod=$(run_pod "$handler" "$name") || return
    container=$(run_container "$pod" "$name" main 'exec sleep 1000000') || return
    echo "$(name_of "$(owner_of "$handler")")=$pod/$container"
  done | keep_as pods
}

# what_runs: each pod's and container's id, process and state, as both containerds themselves have them.
what_runs() {
  local n
  for n in 1 2; do
    ctr --address "$DIR/containerd-$n.sock" --namespace k8s.io containers ls -q | sort || return
    ctr --address "$DIR/containerd-$n.sock" --namespace k8s.io tasks ls | sort || return
  done
}

# start_load [SWITCH [HANDLER...]]: its lines are in $CALLS; returns once every kind of call has been answered. Pods of
# the handlers are created and removed too.
start_load() {
  CALLS=$BATS_TEST_TMPDIR/calls
  SWITCH=${1:-criswitch}
  in_background "$CALLS" "$LOAD" "$DIR/$SWITCH.sock" "$LOAD_LIMIT_S" "$BATS_FILE_TMPDIR/pods" "${@:2}"
  answered_anew
}

# answered_anew: waits until calls of every kind that begin now are answered.
answered_anew() {
  local now
  now=$(now_ms)
  wait_for 30 "answers to all kinds of calls" has_answers "$now"
}

# has_answers MS: for wait_for.
has_answers() {
  local seen
  seen=$(calls "$OK and .backend != \"created\" and .began >= $1" | jq -r '"\(.rpc) \(.backend)"' | sort -u)
  echo "$seen"
  # Two of the node, two lists, and three for the pods of each backend.
  [ "$(wc -l <<<"$seen")" = $((4 + 3 * $(kept pods | sed -n 's/^\([^?].*\)=.*/\1/p' | sort -u | wc -l))) ]
}

# end_load: prints what the switch has taken by then.
end_load() {
  kill "$BACKGROUND" || fail "the load ended by itself: $(tail -n 1 "$CALLS")" || return
  echo "# $(wc -l <"$CALLS") calls; resident memory of the switch then: $(resident_bytes "$SWITCH") bytes" >&3
}

# resident_bytes NAME
resident_bytes() {
  echo $(($(awk '/^VmRSS:/ {print $2}' "/proc/$(cat "$DIR/$1.pid")/status") * 1024))
}

now_ms() {
  date +%s%3N
}

OK='.code == "Ok"'

# calls FILTER: the load's calls of which the filter is true.
calls() {
  # The last line may be half written.
  jq -cR "fromjson? | select($1)" "$CALLS"
}

# none WHAT FILTER: there are no such calls.
none() {
  local seen
  seen=$(calls "$2") || return
  [ -z "$seen" ] || fail "$1: $(wc -l <<<"$seen") of $(wc -l <"$CALLS") calls, the first: $(head -n 3 <<<"$seen")"
}

# some WHAT FILTER: there are such calls.
some() {
  [ -n "$(calls "$2")" ] || fail "$1: none of $(wc -l <"$CALLS") calls"
}

# longest_gap FILTER: the longest time in ms from one answer to the next, among the calls of which the filter is true.
longest_gap() {
  calls "$OK and ($1)" | jq -s 'map(.ended) | sort | [.[1:], .[:-1]] | transpose | map(.[0] - .[1]) | max'
}

# nobody_harmed: what must be so of every load, whatever has failed. Of a default that hangs for long enough the node may
# say that it is not ready.
nobody_harmed() {
  none "not found" '.code == "NotFound"'
  none "a list that lacks something, or a wrong state" '.backend != "node" and .code == "Ok" and (.right | not)'
}

# undisturbed BACKEND...: every call for it, or for `all`, has been answered, and without a pause.
undisturbed() {
  local backend gap
  for backend in "$@"; do
    none "failed calls of $backend" ".backend == \"$backend\" and .code != \"Ok\"" || return
    gap=$(longest_gap ".backend == \"$backend\"")
    echo "# longest time between two answers of $backend: $gap ms" >&3
    [ "$gap" -le "$GAP_LIMIT_MS" ] || fail "longest time between two answers of $backend: $gap ms" || return
  done
}

# same_as_before: both containerds have exactly what they had, and the switch knows it.
same_as_before() {
  # A containerd that is busy lists a task whose shim is slow as UNKNOWN.
  wait_for 20 "the containerds run what they ran" runs_as_before || return
  equal "pods" "$(kept pods | sed 's/.*=//; s,/.*,,' | sort)" "$(cri pods -q --no-trunc | sort)"
  equal "containers" "$(kept pods | sed 's,.*/,,' | sort)" "$(cri ps -q --no-trunc | sort)"
}

# runs_as_before: for wait_for.
runs_as_before() {
  local seen
  seen=$(what_runs) || return
  diff <(kept before) <(echo "$seen")
}

# backend_at SWITCH NAME: what the switch says of a backend. `status` also fails where something is wrong.
backend_at() {
  local state
  state=$("$CRISWITCH" status --json --socket "$DIR/$1.sock") || [ $? = 1 ] || { echo "$state"; return 1; }
  jq -c --arg name "$2" '.backends[] | select(.name == $name)' <<<"$state"
}

# is_backend NAME STATE: for wait_for.
is_backend() {
  local seen
  seen=$(backend_at "$SWITCH" "$1") || { echo "$seen"; return 1; }
  echo "$seen"
  [ "$(jq -r .state <<<"$seen")" = "$2" ]
}

# transitions NAME: how often the state of a backend has changed since the switch began.
transitions() {
  backend_at criswitch "$1" | jq .transitions
}

# probe_says NAME PART: what `check --probe` says of a backend; it fails then.
probe_says() {
  local out
  if out=$("$CRISWITCH" check --probe --config "$DIR/criswitch.toml" 2>&1); then
    fail "check --probe is content: $out"
    return
  fi
  has "check --probe" "$2" "$(grep "^backend \"$1\" " <<<"$out")"
}

# no_exec_in_gvisor: its shim panics, and takes its container along, when it cannot tell containerd of the end of one.
no_exec_in_gvisor() {
  ! pgrep --full 'runsc.* exec ' >/dev/null
}

# signal SIGNAL N: to a containerd.
signal() {
  kill -"$1" "$(cat "$DIR/containerd-$2.pid")"
}

# heal: for teardown; whatever a check has broken runs again.
heal() {
  local n
  for n in 1 2; do
    signal CONT "$n" 2>/dev/null || true
    [ ! -e "$DIR/containerd-$n.exit" ] || start_containerd "$n" || true
  done
  [ ! -e "$DIR/criswitch.exit" ] || start_switch criswitch
}

# failed_for_good BACKEND: no call for it has gone well once one of the same RPC had failed; what stands in for a list of
# pods may be older than what stands in for one of containers.
failed_for_good() {
  local seen
  seen=$(calls ".backend == \"$1\"" | jq -sc 'group_by(.rpc)[] |
    (map(select(.code != "Ok").ended) | min) as $failed |
    map(select($failed and .code == "Ok" and .began > $failed))[]') || return
  [ -z "$seen" ] || fail "calls that went well after others had failed: $(head -n 3 <<<"$seen")"
}
