# shellcheck shell=bash
# A CRI-O, and a criswitch in front of it and of containerd 2, with the table of config/examples/crio-and-containerd.toml.

# start_crio EVENTS: starts the CRI-O, or restarts it after its end. EVENTS says whether it sends events: true or false.
start_crio() {
  configure_crio "$1" || return
  start_program crio crio --config "$DIR/crio.conf" --config-dir "$DIR/crio/conf.d" \
    --registries-conf "$DIR/crio/registries.conf" --registries-conf-dir "$DIR/crio/registries.d"
  wait_for 60 "CRI-O" network_ready crio
}

configure_crio() {
  local runtime
  mkdir -p "$DIR/cni-4" "$DIR/crio"/{conf.d,hooks,registries.d}
  render cni.conflist "$DIR/cni-4/10-bridge.conflist" "BRIDGE=$BRIDGE-4" "SUBNET=$SUBNET_PREFIX.4.0/24"
  render crio.conf "$DIR/crio.conf" "EVENTS=$1" "PINNS=$(command -v pinns)"
  for runtime in crun runc; do
    render oci-runtime.sh "$DIR/crio/$runtime" "RUNTIME=$(command -v "$runtime")"
    chmod +x "$DIR/crio/$runtime"
  done
  printf '[[registry]]\nprefix = "registry.test"\nlocation = "%s"\ninsecure = true\n' "$(registry_address)" \
    >"$DIR/crio/registries.conf"
  render crictl.yaml "$DIR/crictl-crio.yaml" "SOCKET=$DIR/crio.sock"
}

# start_mixed: starts the criswitch `mixed` with the sockets of the checks, and with a row for runc in containerd.
start_mixed() {
  sed -e "1i listen = \"$DIR/mixed.sock\"" -e '/^\[handlers\]/a runc = "containerd"' \
    -e "s|/run/crio/crio.sock|$DIR/crio.sock|; s|/run/containerd/containerd.sock|$DIR/containerd-2.sock|" \
    "$TOP/config/examples/crio-and-containerd.toml" >"$DIR/mixed.toml"
  render crictl.yaml "$DIR/crictl-mixed.yaml" "SOCKET=$DIR/mixed.sock"
  start_program mixed "${CRISWITCH}d" --config "$DIR/mixed.toml"
  wait_for 60 "criswitch" mixed version
}

# mixed ARGUMENT...: runs crictl through the criswitch `mixed`.
mixed() {
  crictl_at mixed "$@"
}

# begin HANDLER NAME: creates a pod with a container through the criswitch `mixed`; keeps the ids as `pod.NAME` and
# `main.NAME`. The container takes a few seconds to stop.
begin() {
  local pod container
  pod=$(mixed runp --runtime "$1" "$(pod_config "$2")") || return
  container=$(mixed create --no-pull "$pod" "$(container_config main 'trap "" TERM; echo begun; while :; do sleep 1; done')" \
    "$DIR/pod-$2.json") && mixed start "$container" >/dev/null || return
  keep_as "pod.$2" <<<"$pod"
  keep_as "main.$2" <<<"$container"
}

# samples WHERE: prints the samples of all metrics at WHERE: id, metric, and the labels that have a value. Fails if a
# sample has more or fewer values than its metric has keys.
samples() {
  crictl_at "$1" metricdescs >"$BATS_TEST_TMPDIR/descriptors" || return
  crictl_at "$1" metricsp | jq -c --slurpfile described "$BATS_TEST_TMPDIR/descriptors" '
    ($described[0].descriptors | map({key: .name, value: .labelKeys}) | from_entries) as $keys
    | .podMetrics[] | {id: .podSandboxId, metrics}, (.containerMetrics[]? | {id: .containerId, metrics})
    | .id as $id | .metrics[]? | .labelValues as $values | $keys[.name] as $its
    | if ($its | length) == ($values | length) then . else error("\(.name): keys \($its), values \($values)") end
    | [$id, .name, ([$its, $values] | transpose | map(select(.[1] != "")) | sort)]' | sort
}
