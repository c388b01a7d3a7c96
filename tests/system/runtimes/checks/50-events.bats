# Streams without an end, and RPCs that need the support of every backend.

load helpers.bash

setup_file() {
  start_switch twins
  crictl_at 2 pull "$BUSYBOX" >/dev/null
  crictl_at 3 pull "$BUSYBOX" >/dev/null
}

teardown_file() {
  remove_pods
  end_remaining TERM twins
}

teardown() {
  end_background
}

# first_event HANDLER: creates a pod, and succeeds when the event of any created pod has arrived; a condition for
# wait_for. The stream may begin later than the first pod, which then has no event.
first_event() {
  crictl_at twins runp --runtime "$1" "$(pod_config "event-$1-$RANDOM")" >>"$BATS_TEST_TMPDIR/$1" || return
  grep -q -F -f "$BATS_TEST_TMPDIR/$1" "$BATS_TEST_TMPDIR/events"
}

# events_of ID: prints the kinds of the events of a pod or container so far, on one line.
events_of() {
  jq -r --arg id "$1" 'select(.containerId == $id) | .containerEventType' "$BATS_TEST_TMPDIR/events" | xargs
}

# has_events ID WANTED: succeeds when exactly these events have arrived; a condition for wait_for.
has_events() {
  events_of "$1"
  [ "$(events_of "$1")" = "$2" ]
}

@test "events arrive from every backend, in order" {
  in_background "$BATS_TEST_TMPDIR/events" crictl --config "$DIR/crictl-twins.yaml" events
  for handler in runc other; do
    wait_for 60 "a first event of $handler" first_event "$handler"
    id=$(crictl_at twins run --no-pull --runtime "$handler" "$(container_config event 'exit 0')" \
      "$(pod_config "event-$handler")")
    wait_for 60 "events of a container on $handler" has_events "$id" \
      "CONTAINER_CREATED_EVENT CONTAINER_STARTED_EVENT CONTAINER_STOPPED_EVENT"
    crictl_at twins rm "$id"
    wait_for 60 "the last event of a container on $handler" has_events "$id" \
      "CONTAINER_CREATED_EVENT CONTAINER_STARTED_EVENT CONTAINER_STOPPED_EVENT CONTAINER_DELETED_EVENT"
  done
}

@test "events are rejected if a backend has none" {
  has "directly at 1.6" "code = Unimplemented" "$(refusal_at 1 events)"
  has "through criswitch" "code = Unimplemented" "$(refusal_at criswitch events)"
}

@test "metricsp has the pods of both of two backends" {
  for handler in runc other; do
    crictl_at twins runp --runtime "$handler" "$(pod_config "metrics-$handler")" >>"$BATS_TEST_TMPDIR/pods"
  done
  seen=$(crictl_at twins metricsp | jq -r '.podMetrics[].podSandboxId')
  while read -r id; do
    has "pods with metrics" "$id" "$seen"
  done <"$BATS_TEST_TMPDIR/pods"
}

@test "statsp has the pods of both of two backends" {
  for handler in runc other; do
    id=$(crictl_at twins runp --runtime "$handler" "$(pod_config "stats-$handler")")
    equal "statsp of a pod on $handler" "$id" "$(crictl_at twins statsp -o json --id "$id" | jq -r '.stats[].attributes.id')"
  done
}

@test "an open stream does not prevent the shutdown of criswitch" {
  in_background "$BATS_TEST_TMPDIR/events" crictl --config "$DIR/crictl-twins.yaml" events
  wait_for 60 "a first event" first_event runc
  equal "exit code after SIGTERM" 0 "$(stop_switch twins)"
}
