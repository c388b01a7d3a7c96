# Whatever interrupts a change of a real node, the node is in the state before or after the change, and its pods run.
# run.sh says how to choose the numbers of cuts and cycles.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/kubelet.bash
load node.bash
load ../runtimes/checks/cluster.bash
load cuts.bash

CUTS=${CRISWITCH_CUTS:-1}
CYCLES=${CRISWITCH_CYCLES:-1}

setup_file() {
  start_link
  start_cluster
  start_node_of_systemd
  kubectl_at_cluster apply -f "$NODE/pods.yaml" >/dev/null
  render static-pod.yaml "$(root)/etc/kubernetes/manifests/fixed.yaml" NAME=fixed
  wait_for 120 "the pods" pods_run || fail "$(tail -n 5 "$(root)"/var/log/*.log)" || return
  specify 1
  wait_for 60 "a plan that rejects nothing" would_change
  files_of_node | keep_as before
}

teardown() {
  end_background
}

teardown_file() {
  end_node
}

@test "each installation and its end leave every file as before, and the kubelet serves in time" {
  local cycle times=$BATS_TEST_TMPDIR/times late
  for ((cycle = 0; cycle < CYCLES; cycle++)); do
    node apply --spec /root/spec.toml | time_of_kubelet >>"$times"
    node status --ready
    node uninstall | time_of_kubelet >>"$times"
    same "the files after cycle $cycle" "$(kept before)" "$(files_of_node)"
  done
  late=$(sort -n "$times" | awk '{all[NR] = $1} END {print all[int(NR * 0.95 + 0.999)]}')
  echo "# the kubelet's part took at most $late s in 95 % of $(wc -l <"$times") changes" >&3
  awk -v late="$late" 'BEGIN {exit late > 60}' || fail "the kubelet's part took $late s"
}

# time_of_kubelet: prints the duration of the steps of a change that concern the kubelet, in seconds.
time_of_kubelet() {
  awk '/^(restart|verify): .*: done after / {sum += $(NF - 1)} END {print sum}'
}

# have_boundaries: asks the program for the boundaries of an apply and of its undo, and keeps the files after an apply.
have_boundaries() {
  [ ! -s "$BATS_FILE_TMPDIR/undo" ] || return 0
  # These checks do not test how long the node stays healthy, so the settle time is short.
  specify 1 && echo 'settle_time = "1s"' >>"$(root)/root/spec.toml" &&
    wait_for 60 "a plan that rejects nothing" would_change && boundaries apply --spec /root/spec.toml | keep_as apply &&
    node status --ready && files_of_node | keep_as after && boundaries undo | keep_as undo || return
  local command
  for command in apply undo; do
    [ "$(kept "$command" | wc -l)" -ge 10 ] || fail "boundaries of $command: $(kept "$command")" || return
  done
}

# cut_at_each STRIDE COMMAND ARGUMENT...: interrupts a command at each of its boundaries, or at some of them: a stride
# greater than 1 begins with a random one.
cut_at_each() {
  local stride=$1 first=$((RANDOM % $1)) boundary what
  shift
  # The list has a descriptor of its own, because programs of the loop read standard input.
  while read -r -u 9 boundary what; do
    [ $((boundary % stride)) != "$first" ] || cut_with_each "$boundary" "$what" "$@" || return
  done 9< <(kept "$1")
}

@test "an apply that is interrupted at a boundary leaves the node as before or as after" {
  local stride=2
  have_boundaries
  [ "${CRISWITCH_FAULTS:-}" != all ] || stride=1
  cut_at_each "$stride" apply --spec /root/spec.toml
}

@test "an undo that is interrupted at a boundary leaves the node as before or as after" {
  local stride=4
  have_boundaries
  # shellcheck disable=SC2034 # cuts.bash uses it.
  NUMBER=$RANDOM
  [ "${CRISWITCH_FAULTS:-}" != all ] || stride=1
  cut_at_each "$stride" undo
}

@test "a change that is interrupted at a random moment leaves the node as before or as after" {
  local cut boundary what command
  have_boundaries
  # A seed repeats the moments' boundaries and faults, not their times.
  echo "# CRISWITCH_SEED=$((RANDOM = ${CRISWITCH_SEED:-$RANDOM}))" >&3
  for ((cut = 0; cut < CUTS; cut++)); do
    command=("apply --spec /root/spec.toml" undo)
    # shellcheck disable=SC2206 # The words of the command.
    command=(${command[RANDOM % 2]})
    read -r boundary what <<<"$(kept "${command[0]}" | shuf -n 1 --random-source=<(yes "$RANDOM"))"
    IS_LATE=1 cut_once "${FAULTS[RANDOM % ${#FAULTS[@]}]}" "$boundary" "$what" "${command[@]}"
  done
}
