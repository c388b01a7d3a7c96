# Known limits of runtimes. A check whose name begins with the name of a limit confirms it: real pods fail on gVisor, and
# the same pods work on runc and crun, or the other way round. docs/compatibility.md names these limits as confirmed.

load helpers.bash
load limits.bash

setup_file() {
  have_images
  have_probe
  shared_folder
}

setup() {
  CASE=limit-$BATS_TEST_NUMBER
}

teardown() {
  end_background
  remove_pods
}

teardown_file() {
  umount -R "$DIR/shared" 2>/dev/null || true
}

# shared_folder: mounts $DIR/shared, whose mounts reach containers that ask for them.
shared_folder() {
  mkdir -p "$DIR/shared" && mount -t tmpfs tmpfs "$DIR/shared" && mount --make-shared "$DIR/shared" &&
    mkdir "$DIR/shared/below"
}

@test "gvisor-host-network: a pod has no network interface of the node" {
  # shellcheck disable=SC2010 # Names of interfaces have no spaces.
  interface=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
  [ -n "$interface" ] || skip "the node has no network interface"
  command='echo interfaces; cat /proc/net/dev'
  works_on_others "$interface:" "$command" "$(namespace network)" "$(namespace network)"
  seen=$(runs gvisor "$command" "$(namespace network)" "$(namespace network)")
  echo "# gvisor: $seen" >&3
  has gvisor interfaces "$seen"
  lacks gvisor "$interface:" "$seen"
}

@test "gvisor-host-pid: the processes of the node are invisible" {
  works_on_others containerd ps "$(namespace pid)" "$(namespace pid)"
  seen=$(runs gvisor ps "$(namespace pid)" "$(namespace pid)")
  echo "# gvisor: $seen" >&3
  has gvisor ps "$seen"
  lacks gvisor containerd "$seen"
}

@test "gvisor-host-ipc: the IPC namespace of the node is not shared" {
  command='readlink /proc/self/ns/ipc || echo none'
  node=$(readlink /proc/self/ns/ipc)
  works_on_others "$node" "$command" "$(namespace ipc)" "$(namespace ipc)"
  seen=$(runs gvisor "$command" "$(namespace ipc)" "$(namespace ipc)")
  echo "# gvisor: $seen" >&3
  lacks gvisor "$node" "$seen"
  lacks gvisor refused "$seen"
}

# with_disk COMMAND...: runs the command with a block device of the node in $DEVICE, and detaches the device.
with_disk() {
  local code=0
  truncate -s 1M "$DIR/disk"
  DEVICE=$(losetup -f --show "$DIR/disk") || { skip "the node has no loop devices"; return; }
  "$@" || code=$?
  losetup -d "$DEVICE"
  return "$code"
}

# cannot_read TEXT PATH FILTER POD-FILTER: checks that a container reads 4 bytes at the path on runc and crun, and that
# gVisor prints the text instead.
cannot_read() {
  local seen command="echo read \$(head -c 4 $2 | wc -c) bytes"
  works_on_others "read 4 bytes" "$command" "$4" "$3" || return
  seen=$(runs gvisor "$command" "$4" "$3")
  echo "# gvisor: $seen" >&3
  has gvisor "$1" "$seen"
}

PRIVILEGED='.linux.security_context.privileged = true'

@test "gvisor-privileged: a privileged container cannot use a device of the node" {
  reads_device() { cannot_read "read 0 bytes" "$DEVICE" "$PRIVILEGED" "$PRIVILEGED"; }
  with_disk reads_device
}

# opens_with_privilege PATH MOUNTED: checks that a privileged container on runc and crun, with the path MOUNTED of the node
# at /node, reads the device at this path, and that a container without privilege sees the device and cannot open it.
opens_with_privilege() {
  local handler seen filter command="ls $1; echo read \$(head -c 4 $1 2>&1 | tail -n 1 | tail -c 24)"
  filter="$(mounts "$2") | .linux.security_context.capabilities = {add_capabilities: [\"SYS_ADMIN\"]}"
  for handler in runc crun; do
    seen=$(runs "$handler" "$command" . "$filter")
    echo "# $handler: $seen" >&3
    has "$handler, without privilege" "$1" "$seen" || return
    has "$handler, without privilege" "peration not permitted" "$seen" || return
    seen=$(runs "$handler" "head -c 4 $1 | wc -c" ".metadata.name = \"p\" | .metadata.uid = \"p\" | $PRIVILEGED" \
      "$(mounts "$2") | $PRIVILEGED")
    # The log has the lines of both containers.
    equal "$handler, with privilege" 4 "${seen##*$'\n'}" || return
  done
}

@test "host-devices: a container without privilege cannot open a device in a volume" {
  opens_device() { opens_with_privilege /node "$DEVICE"; }
  with_disk opens_device
}

@test "host-dev-directory: a container without privilege cannot open the devices in /dev" {
  opens_below() { opens_with_privilege "/node/${DEVICE##*/}" /dev; }
  with_disk opens_below
}

@test "gvisor-net-raw: the capability NET_RAW is dropped" {
  # shellcheck disable=SC2016 # The shell in the container expands these.
  command='mask=$(sed -n "s/^CapEff:[^0-9a-f]*//p" /proc/self/status); echo raw $((0x$mask >> 13 & 1))'
  filter='.linux.security_context.capabilities = {add_capabilities: ["NET_RAW"]}'
  works_on_others "raw 1" "$command" . "$filter"
  seen=$(runs gvisor "$command" . "$filter")
  echo "# gvisor: $seen" >&3
  equal gvisor "raw 0" "$seen"
}

@test "gvisor-host-directories: files in a directory of the node can be read, and sockets in it refuse connections" {
  mkdir "$DIR/mixed"
  echo readable >"$DIR/mixed/file"
  in_background "$BATS_TEST_TMPDIR/server" "$DIR/tools/probe" serve "$DIR/mixed/node.sock"
  wait_for 60 "the server's socket" test -S "$DIR/mixed/node.sock"
  filter="$(mounts "$DIR/mixed") | .mounts += [{host_path: \"$DIR/tools\", container_path: \"/tools\"}]"
  command='cat /node/file; /tools/probe ask /node/node.sock 2>&1'
  works_on_others served "$command" . "$filter"
  seen=$(runs gvisor "$command" . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor readable "$seen"
  has gvisor "connect: " "$seen"
}

@test "gvisor-bidirectional-mounts: a container that passes mounts on does not start" {
  filter=$(mounts "$DIR/shared" '{propagation: 2}')
  works_on_others started 'echo started' . "$filter"
  seen=$(runs gvisor 'echo started' . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor "must specify private or slave" "$seen"
}

@test "gvisor-host-sockets: a connection to a socket of the node is refused" {
  in_background "$BATS_TEST_TMPDIR/server" "$DIR/tools/probe" serve "$DIR/node.sock"
  wait_for 60 "the server's socket" test -S "$DIR/node.sock"
  filter="$(mounts "$DIR/node.sock") | .mounts += [{host_path: \"$DIR/tools\", container_path: \"/tools\"}]"
  works_on_others served '/tools/probe ask /node 2>&1' . "$filter"
  seen=$(runs gvisor '/tools/probe ask /node 2>&1' . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor "connect: " "$seen"
}

@test "gvisor-host-devices: a device of the node does not work in a volume" {
  reads_volume() {
    cannot_read "operation not permitted" /node "$(mounts "$DEVICE") | $PRIVILEGED" "$PRIVILEGED"
  }
  with_disk reads_volume
}

@test "gvisor-block-volumes: a block device of the node does not work" {
  reads_block() {
    cannot_read "read 0 bytes" /dev/volume \
      ".devices = [{host_path: \"$DEVICE\", container_path: \"/dev/volume\", permissions: \"rw\"}]" .
  }
  with_disk reads_block
}

@test "gvisor-sysctls: a sysctl of the pod is ignored" {
  filter='.linux.sysctls = {"net.ipv4.tcp_keepalive_time": "1234"}'
  command='cat /proc/sys/net/ipv4/tcp_keepalive_time'
  works_on_others 1234 "$command" "$filter"
  seen=$(runs gvisor "$command" "$filter")
  echo "# gvisor: $seen" >&3
  lacks gvisor 1234 "$seen"
  lacks gvisor refused "$seen"
}

@test "node-sysctls: runc and crun do not start a pod with a sysctl of the node" {
  filter='.linux.sysctls = {"vm.max_map_count": "262144"}'
  for handler in runc crun; do
    seen=$(runs "$handler" 'echo started' "$filter")
    echo "# $handler: $seen" >&3
    has "$handler" refused "$seen"
    has "$handler" vm.max_map_count "$seen"
    has "$handler, a sysctl of the pod" started "$(runs "$handler" 'echo started' \
      '.metadata.name = "other" | .metadata.uid = "other" | .linux.sysctls = {"net.ipv4.tcp_keepalive_time": "1234"}')"
  done
}

@test "gvisor-seccomp: a seccomp profile is ignored" {
  jq -n '{defaultAction: "SCMP_ACT_ALLOW", syscalls: [{names: ["mkdir", "mkdirat"], action: "SCMP_ACT_ERRNO"}]}' \
    >"$DIR/deny.json"
  filter=".linux.security_context.seccomp = {profile_type: 2, localhost_ref: \"$DIR/deny.json\"}"
  command='mkdir /tmp/made 2>&1 && echo made'
  works_on_others "Operation not permitted" "$command" . "$filter"
  seen=$(runs gvisor "$command" . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor made "$seen"
}

@test "gvisor-setuid: the setuid bit of a program is ignored" {
  filter="$(mounts "$DIR/tools") | .linux.security_context.run_as_user.value = 1000"
  works_on_others "user 0" '/node/probe who' . "$filter"
  equal gvisor "user 1000" "$(runs gvisor '/node/probe who' . "$filter")"
}

@test "gvisor-port-forward: port-forward does not reach the pod" {
  for handler in runc crun gvisor; do
    pod=$(run_pod "$handler" "$CASE-$handler")
    id=$(run_container "$pod" "$CASE-$handler" web 'echo page >/www/index.html; exec httpd -f -p 8080 -h /www')
    wait_for 60 "$handler: the server in the pod" cri exec -s "$id" wget -q -O - http://127.0.0.1:8080/
    in_background "$BATS_TEST_TMPDIR/forward-$handler" crictl --config "$DIR/crictl-criswitch.yaml" port-forward "$pod" :8080
    wait_for 60 "$handler: a local port" grep -q 'Forwarding from 127' "$BATS_TEST_TMPDIR/forward-$handler"
    port=$(sed -n 's/.*Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$BATS_TEST_TMPDIR/forward-$handler" | head -n 1)
    # On gVisor there is no connection, so only the time limit ends the request.
    [ "$handler" != gvisor ] || limit=10
    seen=$(timeout "${limit:-60}" busybox wget -q -O - "http://127.0.0.1:$port/" 2>&1 || true)
    if [ "$handler" = gvisor ]; then
      lacks "$handler: the page" page "$seen"
    else
      equal "$handler: the page" page "$seen"
    fi
  done
}

@test "recursive-read-only: gVisor does not start a container with a recursive read-only mount" {
  filter=$(mounts "$DIR/shared" '{readonly: true, recursive_read_only: true}')
  has runc started "$(runs runc 'echo started' . "$filter")"
  seen=$(runs gvisor 'echo started' . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor refused "$seen"
  has gvisor recursive "$seen"
}

@test "host-users: a handler without the feature gives a pod no user namespace" {
  filter='.linux.security_context.namespace_options.userns_options = {mode: 0,
    uids: [{host_id: 100000, container_id: 0, length: 65536}], gids: [{host_id: 100000, container_id: 0, length: 65536}]}'
  lacking=0
  for handler in runc crun gvisor; do
    feature=$(cri info | jq "[.runtimeHandlers[] | select(.name == \"$handler\") | .features.user_namespaces] | any")
    seen=$(runs "$handler" 'cat /proc/self/uid_map' "$filter" "$filter")
    echo "# $handler: feature $feature: $seen" >&3
    if [ "$feature" = false ]; then
      lacks "$handler" 100000 "$seen"
      lacking=$((lacking + 1))
    fi
  done
  [ "$lacking" -gt 0 ]
}

@test "explain finds the kinds of the handlers, and rejects for gVisor what gVisor refuses" {
  cat >"$DIR/explained.yaml" <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: agent}
spec:
  hostNetwork: true
  runtimeClassName: sandboxed
  containers:
  - name: main
    image: a
    securityContext: {privileged: true}
    volumeMounts: [{name: mounts, mountPath: /mnt, mountPropagation: Bidirectional}]
YAML
  run "$CRISWITCH" explain --config "$DIR/criswitch.toml" -o json -f "$DIR/explained.yaml"
  equal "exit code of explain" 1 "$status"
  equal "kinds and fits" '["crun crun true","gvisor gvisor false","runc runc true","sandboxed gvisor false"]' \
    "$(jq -c '[.pods[0].handlers[] | "\(.handler) \(.kind) \(.fits)"] | sort' <<<"$output")"
  equal "the limits of sandboxed" '["gvisor-host-network","gvisor-net-raw","gvisor-bidirectional-mounts","gvisor-privileged"]' \
    "$(jq -c '[.pods[0].handlers[] | select(.handler == "sandboxed") | .reasons[].limit]' <<<"$output")"
}

@test "explain shows a handler, a pod and a rejected pod of the running node" {
  id=$(run_pod sandboxed "$CASE")
  has "a handler" "kind of runtime: gVisor, from the backend's configuration" \
    "$("$CRISWITCH" explain --config "$DIR/criswitch.toml" sandboxed)"
  has "a pod" "created by row sandboxed" "$("$CRISWITCH" explain --config "$DIR/criswitch.toml" "${id:0:12}")"
  # runc does not start a pod with a sysctl of the node.
  run cri runp --runtime runc "$(pod_config refused '.linux.sysctls = {"vm.max_map_count": "262144"}')"
  equal "exit code of crictl" 1 "$status"
  seen=$("$CRISWITCH" explain --config "$DIR/criswitch.toml" suite/refused)
  has "a pod that the backend refuses" "pod suite/refused (uid uid-refused) was not created" "$seen"
  has "a pod that the backend refuses" "backend new did not create it; row runc" "$seen"
  run cri runp --runtime nosuch "$(pod_config lost)"
  seen=$("$CRISWITCH" explain --config "$DIR/criswitch.toml" suite/lost)
  has "a rejected pod" "pod suite/lost (uid uid-lost) was not created" "$seen"
  has "a rejected pod" 'no runtime for "nosuch" is configured' "$seen"
}
