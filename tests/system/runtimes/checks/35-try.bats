# `criswitch try` starts a pod of each handler, and says which isolation the pod has.

load helpers.bash
load try.bash

setup_file() {
  have_images
  crictl_at 3 pull "$BUSYBOX" >/dev/null
}

teardown_file() {
  remove_pods
}

@test "try shows the isolation of runc, crun and gVisor" {
  seen=$(try_at criswitch --all -o json)
  wanted='{"crun":"hostKernel","gvisor":"userspaceKernel","runc":"hostKernel","sandboxed":"userspaceKernel"}'
  equal "isolation" "$wanted" "$(jq -cS '[.tries[] | {key: .handler, value: .isolation.kind}] | from_entries' <<<"$seen")"
  equal "problems" '[]' "$(jq -c .problems <<<"$seen")"
  has "release in gVisor" gvisor "$(jq -r '.tries[] | select(.handler == "gvisor") | .isolation.release' <<<"$seen")"
  equal "release with runc" "$(uname -r)" \
    "$(jq -r '.tries[] | select(.handler == "runc") | .isolation.release' <<<"$seen")"
  nothing_left
}

@test "try prints a line for each step" {
  out=$(try_at criswitch gvisor)
  for step in "create pod" "create container" "start container" "execute command" "read log" "stop container" \
    "remove container" "stop pod" "remove pod"; do
    has "try gvisor" "  $step" "$out"
  done
  has "try gvisor" "userspace kernel: " "$out"
  has "try gvisor" "ok: this handler starts pods" "$out"
  nothing_left
}

@test "try pulls the image that the user names, if the backend lacks it" {
  image=registry.test/busybox:2
  crictl_at 2 rmi "$image" >/dev/null 2>&1 || true
  has "try with an absent image" "  pull image" "$(try_at criswitch runc --image "$image")"
  lacks "try with a present image" "  pull image" "$(try_at criswitch runc --image "$image")"
  nothing_left
}

@test "a gVisor whose shim is not installed fails with the words of its containerd" {
  end_program TERM containerd-3
  shims=$(dirname "$(command -v runsc)")
  PATH=${PATH//"$shims:"/} launch_containerd 3
  start_switch try
  # `check --probe` sees nothing wrong.
  "$CRISWITCH" check --probe --config "$DIR/try.toml"
  run -1 try_at try gvisor
  has "try gvisor" "create pod" "$output"
  has "try gvisor" "containerd-shim-runsc-v1" "$output"
  has "try gvisor" 'failed at "create pod"' "$output"
  direct=$(refusal_at 3 runp --runtime gvisor "$(pod_config bare)")
  has "the words of containerd" "containerd-shim-runsc-v1" "$direct"
  nothing_left
}

@test "a kata that runs pods on the host kernel is a warning" {
  run -0 --separate-stderr try_at try kata
  has "try kata" "ok: this handler starts pods" "$output"
  # shellcheck disable=SC2154 # bats sets it.
  has "warning" 'the name "kata" promises a virtual machine, but the pod has a host kernel' "$stderr"
  nothing_left
}

@test "Ctrl-C during a try removes the pod" {
  in_background "$BATS_TEST_TMPDIR/out" "$CRISWITCH" try --config "$DIR/criswitch.toml" gvisor
  wait_for 60 "the pod" grep -q "create pod" "$BATS_TEST_TMPDIR/out"
  kill -INT "$BACKGROUND"
  wait_for 60 "the end of the try" grep -q result "$BATS_TEST_TMPDIR/out"
  wait_for 60 "the end of the process" test ! -e "/proc/$BACKGROUND"
  nothing_left
}

@test "criswitch and its containerd are as before" {
  equal "exit code of criswitch" 0 "$(stop_switch try)"
  end_program TERM containerd-3
  start_containerd 3
}
