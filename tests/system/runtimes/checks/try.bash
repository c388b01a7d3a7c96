# shellcheck shell=bash
# Shared by the checks of `criswitch try`.

# try_at NAME ARGUMENT...: runs `criswitch try` at the criswitch with config/NAME.toml.
try_at() {
  "$CRISWITCH" try --config "$DIR/$1.toml" "${@:2}"
}

# nothing_left: checks that no containerd has a pod or a container, and that no log is left.
nothing_left() {
  local n
  for n in 1 2 3; do
    equal "pods of containerd $n" "" "$(pods_at "$n")"
    equal "containers of containerd $n" "" "$(crictl_at "$n" ps -qa)"
  done
  equal "directories for logs" "" "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'criswitch-try-*')"
}
