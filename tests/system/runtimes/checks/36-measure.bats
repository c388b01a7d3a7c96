# `criswitch try --measure` compared with the files of the cgroups and of the processes, which the shell reads during
# the measurement. The shell finds the processes as the descendants of the shim; criswitch finds them by their
# arguments.

load helpers.bash
load try.bash
load measure.bash

setup_file() {
  have_images
  crictl_at 3 pull "$BUSYBOX" >/dev/null
}

teardown() {
  end_background
  remove_pods
}

# has_pod: succeeds when the containerd of gVisor has a pod; a condition for wait_for.
has_pod() {
  [ -n "$(pods_at 2)" ]
}

@test "the figures of runc, crun and gVisor are those of the cgroups and processes" {
  for handler in runc crun gvisor; do
    compare "$handler"
    nothing_left
  done
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
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || skip "only the nightly lane measures all handlers"
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
  wait_for 60 "the next pod" has_pod
  kill -INT "$BACKGROUND"
  wait_for 60 "the end of the process" test ! -e "/proc/$BACKGROUND"
  has "output" "failed: interrupted" "$(cat "$BATS_TEST_TMPDIR/out")"
  nothing_left
  diff "$BATS_TEST_TMPDIR/before" "$DIR/criswitch.toml"
}
