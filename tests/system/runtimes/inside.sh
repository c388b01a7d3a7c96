#!/usr/bin/env bash
# Runs the suite inside of its namespaces: sets everything up, then runs the checks or, with --keep, waits. Only run.sh
# starts this script.
set -u

# shellcheck source=tests/system/runtimes/setup.sh
. "$REAL/setup.sh"

main() {
  if [ "$CHECKS" = "$REAL/checks" ] && ! start_all; then
    show_logs "$DIR"/*.log
    printf 'the set-up failed\n0 passed, 1 failed\n'
    exit 1
  fi
  if [ "${1:-}" = --keep ]; then
    keep
  else
    check "$@"
  fi
}

# The time limit of a run, which takes about thirteen minutes on two quiet cores. A run that hangs fails.
LIMIT=${CRISWITCH_LIMIT:-90m}

# check [BATS-ARGUMENT...]: runs the checks and prints how many passed. A check that did not run counts as failed.
check() {
  local planned passed
  TMPDIR=$DIR timeout "$LIMIT" bats --tap --timing "$@" "$CHECKS" | tee "$DIR/checks.tap"
  planned=$(sed -n 's/^1\.\.//p' "$DIR/checks.tap")
  passed=$(grep -c '^ok ' "$DIR/checks.tap")
  if [ -z "$planned" ] || [ "$planned" = 0 ]; then
    planned=$((passed + 1))
  fi
  [ "$passed" = "$planned" ] || show_logs "$DIR"/{criswitch,twins,idle,mixed,crio}.log
  echo "$passed passed, $((planned - passed)) failed"
  [ "$passed" = "$planned" ]
}

show_logs() {
  local log
  for log in "$@"; do
    [ -e "$log" ] || continue
    printf -- '--- the end of %s\n' "${log##*/}"
    tail -n 15 "$log" | cut -c1-300
  done
}

# Writes the files for a demo, prints its crictl commands, and waits. The runtimes keep running until run.sh ends.
keep() {
  local handler
  for handler in runc crun gvisor sandboxed; do
    jq -n --arg name "demo-$handler" --arg parent "/${DIR##*/}" --arg logs "$DIR/logs/demo-$handler" '{
      metadata: {name: $name, uid: $name, namespace: "demo"}, log_directory: $logs, linux: {cgroup_parent: $parent}
    }' >"$DIR/pod-$handler.json"
  done
  jq -n '{metadata: {name: "shell"}, image: {image: "registry.test/busybox:1"}, log_path: "shell.log",
    command: ["sh", "-c", "uname -a; exec sleep 1000000"]}' >"$DIR/container.json"
  cat <<PLAY

The set-up is running: $DIR (logs, configurations, sockets). In another shell, as root:

  alias c='$(command -v crictl) --config $DIR/crictl-criswitch.yaml'
  c pull registry.test/busybox:1
  c run --runtime gvisor $DIR/container.json $DIR/pod-gvisor.json     # or runc, crun, sandboxed
  c runp --runtime nosuch $DIR/pod-runc.json
  c pods; c ps; c images; c info
  c exec -it \$(c ps -q --name shell | head -n 1) sh

and without criswitch, one containerd at a time:

  $(command -v crictl) --config $DIR/crictl-1.yaml pods       # containerd 1.6: crun
  $(command -v crictl) --config $DIR/crictl-2.yaml pods       # containerd 2.x: runc, gvisor

Ctrl-C here ends and removes everything.
PLAY
  wait
}

main "$@"
