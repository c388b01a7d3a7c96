# A program stops, hangs or dies under a steady load of calls. Nothing is lost, and other backends are not affected.

load helpers.bash
load faults.bash

# The time that a containerd hangs, in seconds.
HANG_S=30
# The number of times that criswitch is killed.
KILLS=20
# The number of times that criswitch is killed while pods are created, and the seed of the random choices.
CREATION_KILLS=${CRISWITCH_KILLS:-10}
SEED=${CRISWITCH_SEED:-$RANDOM}

setup_file() {
  have_images
  run_pods
  what_runs | keep_as before
}

teardown() {
  end_background
  heal
}

teardown_file() {
  remove_pods
}

# hangs N: stops containerd N with SIGSTOP, continues it after $HANG_S seconds, and checks the effects.
hangs() {
  local name other before end
  name=$(name_of "$1")
  other=$(name_of "$(other_than "$1")")
  before=$(transitions "$name")
  start_load
  wait_for 60 "a moment without an exec in gVisor" no_exec_in_gvisor
  end=$((SECONDS + HANG_S))
  signal STOP "$1"
  wait_for 60 "the state unresponsive" is_backend "$name" unresponsive
  probe_says "$name" "no answer within 3s"
  has "BackendsReady" "false backend \"$name\"" "$(backends_ready)"
  [ "$SECONDS" -ge "$end" ] || sleep $((end - SECONDS))
  signal CONT "$1"
  wait_for 60 "the state ready" is_backend "$name" ready
  answers_new_calls
  end_load
  nobody_harmed
  undisturbed "$other" all
  equal "changes of state" $((before + 2)) "$(transitions "$name")"
  none "statuses that failed" ".backend == \"$name\" and .code != \"Ok\" and .rpc != \"ExecSync\""
  none "other failures of $name" ".backend == \"$name\" and .code != \"Ok\" and .code != \"Unavailable\" and ($TIMED_OUT | not)"
  same_as_before
}

# backends_ready: prints the status and the message of the condition BackendsReady.
backends_ready() {
  cri info | jq -r '.status.conditions[] | select(.type == "BackendsReady") | "\(.status) \(.message)"'
}

@test "a containerd that is not the default hangs for 30 seconds" {
  hangs 1
}

@test "the default containerd hangs for 30 seconds" {
  hangs 2
}

# dies N: kills containerd N with SIGKILL, restarts it, and checks the effects.
dies() {
  local name other before
  name=$(name_of "$1")
  other=$(name_of "$(other_than "$1")")
  before=$(transitions "$name")
  start_load
  end_program KILL "containerd-$1"
  wait_for 60 "the state down" is_backend "$name" down
  probe_says "$name" "cannot connect: Connection refused"
  has "BackendsReady" "false backend \"$name\"" "$(backends_ready)"
  start_containerd "$1"
  wait_for 60 "the state ready" is_backend "$name" ready
  answers_new_calls
  end_load
  nobody_harmed
  undisturbed "$other" all
  equal "changes of state" $((before + 2)) "$(transitions "$name")"
  none "statuses that failed" ".backend == \"$name\" and .code != \"Ok\" and .rpc != \"ExecSync\""
  none "other failures of $name" ".backend == \"$name\" and .code != \"Ok\" and .code != \"Unavailable\""
  same_as_before
}

@test "a containerd that is not the default is killed and started again" {
  dies 1
}

@test "the default containerd is killed and started again" {
  dies 2
}

@test "a containerd's socket file is removed: its connection lives on, and the next start is found" {
  start_load
  rm "$DIR/containerd-1.sock"
  probe_says old "No such file"
  answers_new_calls
  undisturbed old new all
  end_program KILL containerd-1
  wait_for 60 "the state down" is_backend old down
  start_containerd 1
  wait_for 60 "the state ready" is_backend old ready
  answers_new_calls
  end_load
  nobody_harmed
  undisturbed new all
  same_as_before
}

@test "a containerd is killed for good: lists are complete while they may be cached, then errors that name the containerd" {
  # Pods of earlier checks were removed without criswitch, so its cached lists may still have them.
  equal "pods" 4 "$(cri pods -q | wc -l)"
  start_switch stale
  start_load stale
  killed=$(now_ms)
  end_program KILL containerd-1
  wait_for 60 "a list that fails" list_fails "$killed"
  failed=$(jq .began "$BATS_TEST_TMPDIR/failed")
  has "the list's error" 'backend \"old\"' "$(cat "$BATS_TEST_TMPDIR/failed")"
  # criswitch serves cached lists that are up to 5 s old, and it cached the last list before the kill.
  [ $((failed - killed)) -ge 3000 ] || fail "lists failed after $((failed - killed)) ms"
  [ $((failed - killed)) -le 60000 ] || fail "lists failed only after $((failed - killed)) ms"
  equal "pods through criswitch without a limit on cached lists" 4 "$(cri pods -q | wc -l)"
  equal "state after the lists failed" down "$(backend_at stale old | jq -r .state)"
  end_load
  nobody_harmed
  undisturbed new
  failed_for_good all
  none "other failures" '.code != "Ok" and .code != "Unavailable"'
  equal "exit code of criswitch" 0 "$(stop_switch stale)"
  start_containerd 1
  wait_for 60 "calls for its pods" cri inspectp "$(kept pods | sed -n 's/^old=//; s,/.*,,p' | head -n 1)"
  same_as_before
}

# list_fails MS: succeeds when a list that began at MS or later has failed; a condition for wait_for. Writes the first
# failed list to the file `failed`.
list_fails() {
  calls ".backend == \"all\" and .code != \"Ok\" and .began >= $1" | head -n 1 >"$BATS_TEST_TMPDIR/failed"
  [ -s "$BATS_TEST_TMPDIR/failed" ]
}

@test "a restart while a containerd is down changes no list, however criswitch ends" {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=criswitch
  cri pods -q --no-trunc | sort | keep_as pods.before
  cri ps -a -q --no-trunc | sort | keep_as containers.before
  cri images -q | sort | keep_as images.before
  end_program KILL containerd-1
  for end in TERM KILL; do
    end_program "$end" criswitch
    start_switch criswitch
    equal "pods after $end" "$(kept pods.before)" "$(cri pods -q --no-trunc | sort)"
    equal "containers after $end" "$(kept containers.before)" "$(cri ps -a -q --no-trunc | sort)"
    equal "images after $end" "$(kept images.before)" "$(cri images -q | sort)"
    pod=$(kept pods | sed -n 's/^old=//; s,/.*,,p' | head -n 1)
    if out=$(cri inspectp "$pod" 2>&1); then fail "a pod of a dead containerd: $out"; fi
    has "the error" 'backend \"old\"' "$out"
  done
  start_containerd 1
  wait_for 60 "the state ready" is_backend old ready
  same_as_before
}

@test "criswitch is killed 20 times: its client sees broken connections until criswitch is back, and no other error" {
  start_load
  for _ in $(seq "$KILLS"); do
    # Each kill comes at a random time, at most a few seconds after the start of criswitch.
    more_calls $((RANDOM % 60))
    printf '{"before": %s, ' "$(now_ms)" >>"$BATS_TEST_TMPDIR/kills"
    end_program KILL criswitch
    printf '"after": %s}\n' "$(now_ms)" >>"$BATS_TEST_TMPDIR/kills"
    launch_switch criswitch
  done
  answers_new_calls
  end_load
  nobody_harmed
  some "broken connections" '.connection'
  none "failures other than a broken connection" '.code != "Ok" and (.connection | not)'
  equal "broken connections while it was there" "" "$(broken_while_there)"
  gap=$(longest_gap true)
  echo "# longest time without any answer: $gap ms" >&3
  [ "$gap" -le "$GAP_LIMIT_MS" ] || fail "longest time without any answer: $gap ms"
  same_as_before
}

# more_calls N: waits for N more calls.
more_calls() {
  wait_for 60 "$1 more calls" has_lines $(($(wc -l <"$CALLS") + $1))
}

# has_lines N: succeeds when the load has written N lines; a condition for wait_for.
has_lines() {
  [ "$(wc -l <"$CALLS")" -ge "$1" ]
}

# broken_while_there: prints the calls whose connection broke while criswitch ran. A call does not count if it overlaps
# the time from a kill to the first reply to a call that began after the kill.
broken_while_there() {
  calls true | jq -c -s --slurpfile kills "$BATS_TEST_TMPDIR/kills" '
    map(select(.code == "Ok")) as $answers
    | ($kills | map(.after as $after | . + {back: ($answers | map(select(.began >= $after) | .ended) | min)})) as $gone
    | map(select(.connection) | . as $call
        | select($gone | any($call.ended >= .before and $call.began <= .back) | not))[]'
}

@test "criswitch is killed while pods are created and a containerd stops and starts: no list lacks an answered pod" {
  echo "# CRISWITCH_SEED=$SEED CRISWITCH_KILLS=$CREATION_KILLS" >&3
  LOAD_LIMIT_S=$((LOAD_LIMIT_S + 10 * CREATION_KILLS))
  kept pods | keep_as all-pods
  # The load must not run an exec in the last pod. This pod is in gVisor, whose shim panics if a containerd ends during
  # an exec.
  { kept all-pods | head -n -1 && echo '?'; } | keep_as pods
  start_load criswitch crun runc
  kill_at_random
  heal
  answers_new_calls
  end_load
  kept all-pods | keep_as pods
  nobody_harmed
  creations_answered
  remove_created
  same_as_before
}

# kill_at_random: kills criswitch CREATION_KILLS times. Before about every second kill it stops or starts a containerd.
kill_at_random() {
  RANDOM=$SEED away=
  for _ in $(seq "$CREATION_KILLS"); do
    more_calls $((RANDOM % 200)) || return
    [ $((RANDOM % 2)) = 0 ] || stop_or_start_one || return
    more_calls $((RANDOM % 100)) || return
    end_program KILL criswitch || return
    launch_switch criswitch
  done
}

# stop_or_start_one: stops a containerd by SIGTERM, SIGKILL or SIGSTOP, or restarts the stopped one, which `away` names.
stop_or_start_one() {
  if [ -n "$away" ]; then
    heal
    away=
    return
  fi
  away=$((RANDOM % 2 + 1))
  case $((RANDOM % 3)) in
    0) end_program TERM "containerd-$away" ;;
    1) end_program KILL "containerd-$away" ;;
    2) signal STOP "$away" ;;
  esac
}

# creations_answered: prints the outcomes of the creations and removals, and checks that a call of each RPC succeeded.
creations_answered() {
  local rpc
  for rpc in RunPodSandbox CreateContainer RemovePodSandbox; do
    some "$rpc" ".rpc == \"$rpc\" and .code == \"Ok\""
    echo "# $rpc: $(calls ".rpc == \"$rpc\"" | jq -r .code | sort | uniq -c | tr -s ' \n' ' ')" >&3
  done
}

# remove_created: removes the created pods at the containerds, including pods whose creation was not confirmed.
remove_created() {
  local n
  for n in 1 2; do
    wait_for 60 "the removal of the created pods" remove_created_at "$n" || return
    remove_leftovers "$n" || return
  done
}

# remove_created_at N: removes the created pods of a containerd; a condition for wait_for. If a StartContainer was
# cancelled at the wrong time, containerd lists the container as exited although its task runs, and never removes the
# pod. This function therefore ends the tasks of pods that were not removed.
remove_created_at() {
  local pods pod
  pods=$(crictl_at "$1" pods -q --name '^created-') || return
  [ -n "$pods" ] || return 0
  # shellcheck disable=SC2086 # One argument for each pod.
  crictl_at "$1" rmp -f $pods >/dev/null && return
  for pod in $pods; do
    crictl_at "$1" ps -aq --no-trunc --pod "$pod" |
      xargs -r -n 1 ctr --address "$DIR/containerd-$1.sock" --namespace k8s.io tasks rm --force
  done
  return 1
}

# remove_leftovers N: removes containers that a containerd was creating when it ended. containerd still has them, but
# its CRI does not list them.
remove_leftovers() {
  local n=$1 id at
  at=(ctr --address "$DIR/containerd-$n.sock" --namespace k8s.io)
  comm -23 <("${at[@]}" containers ls -q | sort) \
    <({ crictl_at "$n" pods -q --no-trunc && crictl_at "$n" ps -aq --no-trunc; } | sort) |
    while read -r id; do
      echo "# containerd-$n was ended while it created $id" >&3
      "${at[@]}" tasks rm --force "$id" >/dev/null
      "${at[@]}" containers rm "$id" || return
    done
}
