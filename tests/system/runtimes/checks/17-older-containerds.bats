# Older containerds as second backends.

load helpers.bash

setup() {
  [ -n "${CRISWITCH_OLDER_CONTAINERDS:-}" ] || skip "only the nightly lane of tests/run.sh builds older containerds"
}

teardown() {
  crictl_at 6 rmp -af >/dev/null 2>&1 || true
  end_remaining TERM older containerd-6
}

# start_older VERSION: starts a containerd of this version, and a criswitch `older` whose handler `older` is the runc of
# this containerd.
start_older() {
  local folder
  folder=$(tr : '\n' <<<"$CRISWITCH_OLDER_CONTAINERDS" | grep "/containerd-$1-")
  # Another version has other data: for example, the pins of images.
  rm -rf "$DIR/containerd-6"
  start_containerd 6 "$folder"
  cat >"$DIR/older.toml" <<TABLE
listen = "$DIR/older.sock"
default_handler = "runc"
[handlers]
runc = { backend = "first", handler = "runc" }
older = { backend = "second", handler = "runc" }
[backends]
first = "$DIR/containerd-2.sock"
second = "$DIR/containerd-6.sock"
TABLE
  render crictl.yaml "$DIR/crictl-older.yaml" "SOCKET=$DIR/older.sock"
  start_program older "${CRISWITCH}d" --config "$DIR/older.toml"
  wait_for 60 "criswitch" older version
  has "version" " $1." "$(crictl_at 6 version)"
}

# older ARGUMENT...: runs crictl through the criswitch `older`.
older() {
  crictl_at older "$@"
}

# runs_and_ends: checks the calls for a container of the handler `older`, from its pull to its end.
runs_and_ends() {
  local pod id
  older pull "$BUSYBOX" >/dev/null
  pod=$(older runp --runtime older "$(pod_config older)")
  equal "pods of the older containerd" "$pod" "$(pods_at 6)"
  id=$(older create --no-pull "$pod" "$(container_config older 'echo begun; exec sleep 1000000')" "$DIR/pod-older.json")
  older start "$id" >/dev/null
  equal "exec" hi "$(older exec -s "$id" echo hi)"
  equal "exec with a stream" piped "$(echo piped | older exec -i "$id" cat)"
  equal "log" begun "$(older logs "$id")"
  equal "stats" "$id" "$(older stats -o json --id "$id" | jq -r '.stats[].attributes.id')"
  equal "stats of the pod" "$pod" "$(older statsp -o json --id "$pod" | jq -r '.stats[].attributes.id')"
  older update --cpu-share 512 "$id" >/dev/null
  equal "inspect" "$(crictl_at 6 inspect "$id" | jq -S .)" "$(older inspect "$id" | jq -S .)"
  older stop --timeout 1 "$id"
  older rm "$id"
  older stopp "$pod"
  older rmp "$pod"
  equal "pods of the older containerd" "" "$(pods_at 6)"
}

# lacks_metrics: prints the RPCs for metrics that the older containerd lacks.
lacks_metrics() {
  "$CRISWITCH" check --probe --config "$DIR/older.toml" -o json |
    jq -r '.backends[] | select(.name == "second") | .probe.lackingRpcs[] | select(contains("Metric"))' | sort | xargs
}

@test "an older containerd, 2.3, is a second backend with metrics, not streamed" {
  start_older 2.3
  runs_and_ends
  equal "RPCs that it lacks" StreamPodSandboxMetrics "$(lacks_metrics)"
}

@test "an older containerd, 1.7, is a second backend without metrics, and pins its pause image" {
  start_older 1.7
  runs_and_ends
  equal "RPCs that it lacks" "ListMetricDescriptors ListPodSandboxMetrics StreamPodSandboxMetrics" "$(lacks_metrics)"
  equal "the pin of the pause image" true "$(crictl_at 6 inspecti registry.test/pause:1 | jq .status.pinned)"
  lacks "check --probe" "pause image" "$("$CRISWITCH" check --probe --config "$DIR/older.toml")"
}
