# Two containerds with the default settings of NRI, and with those of docs/second-daemon.md, which all runtimes of the suite
# have.

load helpers.bash

setup_file() {
  mkdir -p "$DIR/nri"
  cat >"$DIR/nri.toml" <<TABLE
default_handler = "first"
listen = "$DIR/nri/criswitch.sock"
[handlers]
first = { backend = "one", handler = "runc" }
second = { backend = "two", handler = "runc" }
[backends]
one = "$DIR/nri/one.sock"
two = "$DIR/nri/two.sock"
TABLE
}

teardown() {
  end_remaining TERM nri-one nri-two twins
  rm -f /run/nri/nri.sock
}

# start_default NAME [SED-COMMAND]: starts a containerd with its default configuration, changed by the command.
start_default() {
  containerd config default | sed "s|^root = .*|root = '$DIR/nri/root-$1'|
    s|^state = .*|state = '$DIR/nri/state-$1'|
    s|/run/containerd/containerd.sock|$DIR/nri/$1.sock|
    s|/opt/containerd|$DIR/nri/opt-$1|
    ${2:-}" >"$DIR/nri/$1.toml"
  start_program "nri-$1" containerd --config "$DIR/nri/$1.toml"
  wait_for 60 "containerd $1" crictl_of "$1" version
}

crictl_of() {
  crictl --runtime-endpoint "unix://$DIR/nri/$1.sock" "$2"
}

# shared: prints the paths that the check of the node names.
shared() {
  "$CRISWITCH" check --node --config "$DIR/nri.toml" -o json |
    jq -r '.node.findings[] | select(.what | test("backends|containerd .pid")) | .path' | sort
}

@test "two containerds with default settings: check --node names what they share, and a socket that leads nowhere" {
  start_default one
  start_default two
  equal "shared" "$(printf '%s\n' '/etc/containerd/conf.d/*.toml' /opt/nri/plugins /run/nri/nri.sock \
    /var/run/nri/nri.sock | sort)" "$(shared)"
  has "check --probe" 'have the same NRI socket' "$("$CRISWITCH" check --probe --config "$DIR/nri.toml")"
  has "discover" 'start the same NRI plug-ins' "$("$CRISWITCH" discover "$DIR/nri/one.sock" "$DIR/nri/two.sock" 2>&1)"
  # `status` asks any criswitch of the machine.
  start_switch twins
  has "status" "listen at the path of this NRI socket" \
    "$("$CRISWITCH" status --socket "$DIR/twins.sock" -o json | jq -r '.lostNriSockets[]')"
  # The file of the socket stays, and nothing listens there.
  end_program TERM nri-two
  equal "shared" /run/nri/nri.sock "$(shared)"
}

@test "two containerds with the settings of the page, with NRI or without, share nothing that matters" {
  start_default one
  for nri in "s|/var/run/nri/nri.sock|$DIR/nri/nri.sock|; s|/opt/nri/plugins|/opt/nri/plugins-2|" \
    '/io.containerd.nri.v1.nri/,/disable/s|disable = false|disable = true|'; do
    start_default two "s|^imports = .*|imports = ['/etc/containerd-2/conf.d/*.toml']|; $nri"
    equal "shared" "" "$(shared)"
    end_program TERM nri-two
  done
}

@test "check --probe names the pause image of containerd 1.6, which pins none, and not that of 2.x" {
  for n in 1 2; do
    crictl_at "$n" pull registry.test/pause:1 >/dev/null
  done
  unpinned=$("$CRISWITCH" check --probe --config "$DIR/criswitch.toml" -o json |
    jq -c '.consequences[] | select(.what | contains("pause image")) | [.backends[], (.what | contains("registry.test/pause:1"))]')
  equal "unpinned pause images" '["old",true]' "$unpinned"
}

# critest skips these specs if containerd does not tell a plug-in that connects of each container that is created meanwhile.
# Only the moment decides whether that happens.
MAY_SKIP="should receive a callback for container created during the Synchronize call
should receive information about all containers without the race condition during initialization"

# passes_nri WHERE N HANDLER: checks that critest's 13 specs of NRI pass at the socket WHERE, for pods of the handler that
# containerd N runs, or are those of MAY_SKIP.
passes_nri() {
  local report=$BATS_TEST_TMPDIR/$1-$2.json ended
  critest -runtime-endpoint "unix://$DIR/$1.sock" -image-endpoint "unix://$DIR/$1.sock" -runtime-handler "$3" \
    -nri-socket "$DIR/nri-$2.sock" -test-images-file "$DIR/nri/images.yaml" -ginkgo.no-color -ginkgo.focus '\[k8s.io\] NRI' \
    -ginkgo.flake-attempts 2 -ginkgo.json-report "$report" >"$BATS_TEST_TMPDIR/critest" 2>&1 ||
    fail "$1: $(<"$BATS_TEST_TMPDIR/critest")" || return
  ended=$(jq -r '.[].SpecReports[] | select(.LeafNodeType == "It" and .ContainerHierarchyTexts[0] == "[k8s.io] NRI") |
    .State + " " + .LeafNodeText' "$report")
  echo "# $1, containerd $2: $(grep -c ^passed <<<"$ended") of $(wc -l <<<"$ended") specs pass" >&3
  equal "specs of NRI" 13 "$(wc -l <<<"$ended")"
  equal "other specs that do not pass" "" "$(grep -v '^passed ' <<<"$ended" | grep -vxF "skipped ${MAY_SKIP/$'\n'/$'\n'skipped }")"
}

@test "critest's specs of NRI pass for both of two containerds, directly and through criswitch" {
  command -v critest >/dev/null || skip "only the nightly lane of tests/run.sh builds critest"
  start_switch twins
  echo "defaultTestContainerImage: $BUSYBOX" >"$DIR/nri/images.yaml"
  passes_nri containerd-2 2 runc
  passes_nri containerd-3 3 runc
  passes_nri twins 2 runc
  passes_nri twins 3 other
}
