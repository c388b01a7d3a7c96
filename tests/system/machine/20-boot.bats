# The first boot with criswitch: order of the units, socket activation, watchdog, the end of the process, and what a pod
# costs on cgroup v2.

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/try.bash
load ../runtimes/checks/measure.bash
load machine.bash

# The emulated processor is slow.
# shellcheck disable=SC2034 # measure.bash uses these.
{
  IDLE_S=15
  AGE_S=8
  LIMIT_S=400
}

setup_file() {
  wait_for 120 "criswitch" cri version
  rm /etc/systemd/system/criswitch.service.d/test.conf
  systemctl disable early.service
  systemctl daemon-reload
}

teardown() {
  end_background
}

@test "the socket listens before the service starts, and the service starts once" {
  socket=$(when criswitch.socket ActiveEnter) begin=$(when criswitch.service InactiveExit)
  active=$(when criswitch.service ActiveEnter)
  show "socket after $((socket / 1000)) ms, service from $((begin / 1000)) to $((active / 1000)) ms"
  [ "$socket" -gt 0 ] && [ "$socket" -le "$begin" ] && [ "$begin" -lt "$active" ]
  equal "restarts" 0 "$(systemctl show --value --property=NRestarts criswitch.service)"
}

# has_ended UNIT: succeeds when the unit does not run; a condition for wait_for.
has_ended() {
  ! systemctl is-active --quiet "$1"
}

@test "a client that has connected before the service starts is served" {
  wait_for 60 "the end of the client" has_ended early.service
  equal "result of the client" success "$(systemctl show --value --property=Result early.service)" ||
    fail "$(journalctl --output=short-monotonic --unit=early.service)"
  [ "$(when early.service ActiveEnter)" -lt "$(when criswitch.service ActiveEnter)" ]
  equal "its list" 0 "$(jq '.items | length' /run/early)"
}

@test "a connection starts the stopped service" {
  systemctl stop criswitch.service
  equal "state" inactive "$(systemctl is-active criswitch.service)"
  cri version
  equal "state" active "$(systemctl is-active criswitch.service)"
}

# Only the cgroups are compared. On this slow processor the memory of a shim still grows, and processor times are not
# realistic.
@test "try --measure agrees with the files of cgroup v2" {
  measure runc
  # shellcheck disable=SC2154 # measure.bash sets it.
  near "memory in the cgroups" "$in_cgroups" "$(jq .cgroupMemoryBytes.median <<<"$container")" \
    $((in_cgroups * MEMORY_PERCENT / 100))
  show "overhead: $(kept runc.json | jq -r .row)"
  equal "pods and containers after the measurement" "" "$(all_at criswitch)"
}

@test "pods run on both runtimes, in scopes of systemd" {
  for handler in runc crun; do
    pod=$(run_pod "$handler" "$handler")
    container=$(run_container "$pod" "$handler" main "exec sleep 1000000")
    equal "state" CONTAINER_RUNNING "$(state_of "$container")"
    equal "state of the scope" active "$(systemctl is-active "cri-containerd-$container.scope")"
    [ -d "/sys/fs/cgroup/suite.slice/cri-containerd-$container.scope" ]
  done
  lists_are_whole
}

# recovers SIGNAL: sends the signal to criswitch, which must serve again with another process. The pods stay.
recovers() {
  local before containers began=$EPOCHREALTIME
  before=$(process criswitch.service) containers=$(cri ps -q)
  kill "-$1" "$before"
  wait_for 150 "another process" is_process_other_than criswitch.service "$before"
  equal "containers" "$containers" "$(cri ps -q)"
  lists_are_whole
  show "served $(awk -v from="$began" -v to="$EPOCHREALTIME" 'BEGIN {printf "%.1f", to - from}') s after SIG$1"
}

@test "criswitch serves again after SIGKILL" {
  recovers KILL
}

@test "the watchdog restarts criswitch after SIGSTOP" {
  recovers STOP
  has "journal" "Watchdog timeout" "$(journalctl --unit=criswitch.service --output=cat)"
}

@test "the next boot is one without the second runtime" {
  all_at criswitch >"$DIR/before"
  equal "number of pods and containers" 4 "$(wc -l <"$DIR/before")"
  systemctl disable containerd@2.service
}
