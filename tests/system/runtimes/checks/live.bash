# shellcheck shell=bash
# Shared by the checks of changes at run time: a criswitch whose files are in a separate folder, pods that support every
# call, and the file with the pods that the load expects.

# The folder with the files of the criswitch `live`. No other instance reads drop-ins in this folder.
LIVE=$DIR/live

# A command that serves a page, repeats its input, and ends at once on SIGTERM.
# shellcheck disable=SC2016 # The container's variables.
SERVICE='echo page >/www/index.html; httpd -p 8080 -h /www; trap "exit 0" TERM; echo begun; while read -r line; do echo "got $line"; done'

# live ARGUMENT...: runs crictl through the criswitch `live`.
live() {
  crictl_at live "$@"
}

# start_live: starts the criswitch `live`. Its configuration is made from config/live.toml if $LIVE has none yet.
start_live() {
  mkdir -p "$LIVE/conf.d"
  [ -e "$LIVE/criswitch.toml" ] || render live.toml "$LIVE/criswitch.toml"
  render crictl.yaml "$DIR/crictl-live.yaml" "SOCKET=$DIR/live.sock"
  start_program live "${CRISWITCH}d" --config "$LIVE/criswitch.toml"
  wait_for 60 "criswitch" live version
}

# write FILE: replaces a file of the configuration atomically with standard input, as an installer does.
write() {
  cat >"$LIVE/.new" && mv "$LIVE/.new" "$LIVE/$1"
}

# reload: runs `criswitch reload` and prints its output.
reload() {
  "$CRISWITCH" reload --config "$LIVE/criswitch.toml" 2>&1
}

# reloaded_after N: succeeds when more than N reloads have ended and no reload is in progress; a condition for wait_for.
reloaded_after() {
  local own
  own=$(own_info) || return
  jq -c .reloads <<<"$own"
  jq -e --argjson n "$1" '.reloads | .count > $n and .begun == .count' <<<"$own" >/dev/null
}

# what_changed COMMAND...: runs a command that causes a reload, and prints the outcome of the reload.
what_changed() {
  local count
  count=$(own_info | jq .reloads.count) && "$@" && wait_for 60 "a reload" reloaded_after "$count" || return
  own_info | jq -r '.reloads.recent[-1] | .problems // .changes.lines[]'
}

# own_info: prints the state of the criswitch `live` as JSON. `status` also exits with 1 if a backend has a problem.
own_info() {
  local state
  state=$("$CRISWITCH" status --json --socket "$DIR/live.sock") || [ $? = 1 ] || { echo "$state"; return 1; }
  jq -c . <<<"$state"
}

# backend_has NAME JQ-FILTER: prints a part of the state of a backend as criswitch reports it.
backend_has() {
  own_info | jq -c --arg name "$1" ".backends[] | select(.name == \$name) | $2"
}

# handlers: prints all handlers with their backends, and whether they are auto-registered.
handlers() {
  own_info | jq -c '[.handlers[] | "\(.name)=\(.backend)\(if .origin == "auto-registered" then " auto-registered" else "" end)"]'
}

# expect_pods LINE...: replaces the lines of the file with the pods that the load expects.
expect_pods() {
  { [ $# = 0 ] || printf '%s\n' "$@"; } >"$BATS_FILE_TMPDIR/pods.new"
  mv "$BATS_FILE_TMPDIR/pods.new" "$BATS_FILE_TMPDIR/pods"
}

# pods_but POD-ID: prints the file of pods that the load expects, without the line of this pod.
pods_but() {
  kept pods | grep -v "=$1/" || true
}

# begin_service WHERE POD-NAME HANDLER: creates a pod that runs $SERVICE at WHERE; keeps the pod's id as `pod.NAME` and
# the container's as `main.NAME`.
begin_service() {
  local where=$1 name=$2 pod container config
  pod=$(crictl_at "$where" runp --runtime "$3" "$(pod_config "$name")") || return
  config=$(container_config main "$SERVICE" '.stdin = true')
  container=$(crictl_at "$where" create --no-pull "$pod" "$config" "$DIR/pod-$name.json") || return
  crictl_at "$where" start "$container" >/dev/null || return
  keep_as "pod.$name" <<<"$pod"
  keep_as "main.$name" <<<"$container"
}

# new_service NAME HANDLER: creates a pod through criswitch under load.
new_service() {
  local before
  mapfile -t before < <(kept pods)
  expect_pods "${before[@]}" '?'
  begin_service live "$1" "$2" || return
  expect_pods "${before[@]}" "$(owner_name "$1")=$(kept "pod.$1")/$(kept "main.$1")"
}

# end_service NAME: stops and removes a pod through criswitch, step by step, under load.
end_service() {
  local pod container left
  pod=$(kept "pod.$1") container=$(kept "main.$1")
  mapfile -t left < <(pods_but "$pod")
  expect_pods "${left[@]}" "?gone=$pod/$container"
  live stop --timeout 10 "$container" && live rm "$container" && live stopp "$pod" && live rmp "$pod" || return
  expect_pods "${left[@]}"
}

# owner_name NAME: prints the load's name for the containerd that has the pod.
owner_name() {
  if pods_at_has 1 "$1"; then echo old; else echo new; fi
}

pods_at_has() {
  crictl_at "$1" pods -q --no-trunc | grep -q "^$(kept "pod.$2")$"
}

# works NAME WHERE: checks that every call for the pod works through criswitch, and that inspect prints the same as at
# the pod's containerd WHERE.
works() {
  local pod container
  pod=$(kept "pod.$1") container=$(kept "main.$1")
  equal "$1: what inspect says" "$(crictl_at "$2" inspect "$container" | jq -cS .)" \
    "$(live inspect "${container:0:13}" | jq -cS .)"
  equal "$1: state of the pod" SANDBOX_READY "$(live inspectp "$pod" | jq -r .status.state)"
  equal "$1: first line of the log" begun "$(live logs "$container" | head -n 1)"
  equal "$1: exec" hi "$(live exec "$container" echo hi)"
  equal "$1: stats" "$container" "$(live stats -o json --id "$container" | jq -r '.stats[].attributes.id')"
  attaches "$1"
  # Port-forwarding into gVisor fails with containerd alone too.
  [ "$(live inspectp "$pod" | jq -r .status.runtimeHandler)" = gvisor ] || forwards "$1"
}

# attaches NAME: checks that the container repeats the input of an attach.
attaches() {
  local said=$BATS_TEST_TMPDIR/attached-$1 word=word-$RANDOM
  # crictl ends when its input ends, even before the reply, so the input stays open.
  # shellcheck disable=SC2016 # The inner shell's.
  in_background "$said" bash -c 'exec crictl --config "$0" attach -i "$1" < <(echo "$2"; exec sleep 60)' \
    "$DIR/crictl-live.yaml" "$(kept "main.$1")" "$word"
  wait_for 60 "$1: the output of the attached container" grep -q "got $word" "$said"
  kill "$BACKGROUND" 2>/dev/null || true
}

# forwards NAME: checks that a port-forward serves the page of the pod.
forwards() {
  local said=$BATS_TEST_TMPDIR/forwarded-$1 port
  in_background "$said" crictl --config "$DIR/crictl-live.yaml" port-forward "$(kept "pod.$1")" :8080
  wait_for 60 "$1: a local port" grep -q 'Forwarding from 127' "$said"
  port=$(sed -n 's/.*Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$said" | head -n 1)
  equal "$1: the page" page "$(busybox wget -q -O - "http://127.0.0.1:$port/")"
  kill "$BACKGROUND"
}

# started_as NAME: prints ids, process and times of the container.
started_as() {
  local n
  for n in 1 2; do
    crictl_at "$n" inspect "$(kept "main.$1")" 2>/dev/null |
      jq -c '[.status.id, .info.sandboxID, .info.pid, .status.createdAt, .status.startedAt]'
  done
}
