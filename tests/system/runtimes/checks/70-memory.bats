# The memory of the daemon on an idle node.

load helpers.bash

# The program that links glibc has 11.1 MB; the static one of a release has less.
LIMIT_BYTES=11500000

teardown() {
  stop_switch idle
  rm -f "$DIR/containerd-3-again.sock"
}

@test "idle with four backends it stays under 11.5 MB" {
  launch_switch idle
  # The link is created after criswitch has read the configuration. With an earlier link, both paths would be one
  # backend.
  wait_for 60 "the socket of criswitch" test -S "$DIR/idle.sock"
  ln -s containerd-3.sock "$DIR/containerd-3-again.sock"
  wait_for 60 "criswitch" crictl_at idle version
  own=$(crictl_at idle info | jq -c .criswitch)
  for backend in containerd-1 containerd-2 containerd-3 containerd-3-again; do
    has "backends in info" "$DIR/$backend.sock" "$own"
  done
  crictl_at idle pods
  bytes=$(($(awk '/^VmRSS:/ {print $2}' "/proc/$(cat "$DIR/idle.pid")/status") * 1024))
  echo "# resident memory of the idle daemon with four backends: $bytes bytes" >&3
  [ "$bytes" -lt "$LIMIT_BYTES" ] || fail "resident memory: expected under $LIMIT_BYTES bytes, saw $bytes"
}
