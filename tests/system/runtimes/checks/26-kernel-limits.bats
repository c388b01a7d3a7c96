# Known limits that come from the kernel of a pod, and fields that no runtime reads. As in 25-limits.bats, a check whose
# name begins with the name of a limit confirms it, in both directions.

load helpers.bash
load limits.bash

setup_file() {
  have_images
  have_probe
  keep_as hugepages </proc/sys/vm/nr_hugepages
}

setup() {
  CASE=kernel-$BATS_TEST_NUMBER
}

teardown() {
  end_background
  remove_pods
}

teardown_file() {
  local name
  for name in bpf huge; do
    umount "$DIR/$name" 2>/dev/null || true
  done
  kept hugepages >/proc/sys/vm/nr_hugepages
}

# adds CAPABILITY...: the jq filter for a container with these capabilities and the tools at /node.
adds() {
  echo "$(mounts "$DIR/tools") | .linux.security_context.capabilities.add_capabilities =
    $(printf '%s\n' "$@" | jq -R . | jq -sc .)"
}

@test "gvisor-kernel-capabilities: eBPF does not work with the capability" {
  works_on_others made '/node/probe pin /none 2>&1' . "$(adds BPF)"
  seen=$(runs gvisor '/node/probe pin /none 2>&1' . "$(adds BPF)")
  echo "# gvisor: $seen" >&3
  has gvisor "map: " "$seen"
}

@test "gvisor-capabilities: with SYSLOG a container reads the log of gVisor's own kernel" {
  mark=criswitch-${DIR##*-}
  echo "$mark" >/dev/kmsg
  works_on_others "$mark" dmesg . "$(adds SYSLOG)"
  seen=$(runs gvisor dmesg . "$(adds SYSLOG)")
  echo "# gvisor: ${seen%%$'\n'*}" >&3
  lacks gvisor "$mark" "$seen"
  has gvisor gVisor "$seen"
}

@test "sandbox-bpf: a container cannot use the eBPF objects of the node" {
  mkdir -p "$DIR/bpf"
  mount -t bpf bpf "$DIR/bpf"
  filter="$(adds BPF SYS_ADMIN) | .mounts += [{host_path: \"$DIR/bpf\", container_path: \"/bpf\"}]"
  for handler in runc crun; do
    has "$handler" pinned "$(runs "$handler" "/node/probe pin /bpf/$handler 2>&1" . "$filter")"
    [ -e "$DIR/bpf/$handler" ] || fail "$handler: no object on the node"
  done
  seen=$(runs gvisor '/node/probe pin /bpf/gvisor 2>&1' . "$filter")
  echo "# gvisor: $seen" >&3
  lacks gvisor pinned "$seen"
  [ ! -e "$DIR/bpf/gvisor" ] || fail "gvisor: an object on the node"
}

@test "gvisor-huge-pages: a file in a volume of huge pages has none of them" {
  echo 8 >/proc/sys/vm/nr_hugepages
  [ "$(cat /proc/sys/vm/nr_hugepages)" -ge 4 ] || skip "the node has no huge pages"
  mkdir -p "$DIR/huge"
  mount -t hugetlbfs -o pagesize=2M none "$DIR/huge"
  filter="$(mounts "$DIR/tools") | .mounts += [{host_path: \"$DIR/huge\", container_path: \"/huge\"}]"
  # shellcheck disable=SC2016 # The shell in the container expands it.
  works_on_others "2048 kB" '/node/probe map /huge/$$ 2>&1' . "$filter"
  # shellcheck disable=SC2016
  seen=$(runs gvisor '/node/probe map /huge/$$ 2>&1; echo end' . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor end "$seen"
  lacks gvisor "2048 kB" "$seen"
}

@test "gvisor-kubelet-sockets: a plug-in does not reach a socket in a directory of the kubelet" {
  mkdir -p "$DIR/kubelet/device-plugins"
  in_background "$BATS_TEST_TMPDIR/server" "$DIR/tools/probe" serve "$DIR/kubelet/device-plugins/kubelet.sock"
  wait_for 60 "the server's socket" test -S "$DIR/kubelet/device-plugins/kubelet.sock"
  filter="$(mounts "$DIR/kubelet/device-plugins") | .mounts += [{host_path: \"$DIR/tools\", container_path: \"/tools\"}]"
  works_on_others served '/tools/probe ask /node/kubelet.sock 2>&1' . "$filter"
  seen=$(runs gvisor '/tools/probe ask /node/kubelet.sock 2>&1' . "$filter")
  echo "# gvisor: $seen" >&3
  has gvisor "connect: " "$seen"
}

@test "seccomp-annotations: the annotation has no effect, and the field has" {
  jq -n '{defaultAction: "SCMP_ACT_ALLOW", syscalls: [{names: ["mkdir", "mkdirat"], action: "SCMP_ACT_ERRNO"}]}' \
    >"$DIR/deny.json"
  local command='mkdir /tmp/made 2>&1 && echo made'
  local annotation=".annotations = {\"seccomp.security.alpha.kubernetes.io/pod\": \"localhost/$DIR/deny.json\"}"
  for handler in runc crun gvisor; do
    equal "$handler, the annotation" made "$(runs "$handler" "$command" "$annotation" "$annotation")"
  done
  CASE=$CASE-field works_on_others "Operation not permitted" "$command" . \
    ".linux.security_context.seccomp = {profile_type: 2, localhost_ref: \"$DIR/deny.json\"}"
}

@test "kata-annotations: a pod has the processors and the memory of the node, whatever it asks of Kata Containers" {
  local annotation='.annotations = {"io.katacontainers.config.hypervisor.default_vcpus": "1",
    "io.katacontainers.config.hypervisor.default_maxvcpus": "1", "io.katacontainers.config.hypervisor.default_memory": "256"}'
  # shellcheck disable=SC2016 # The shell in the container expands it.
  local command='echo $(nproc) $(sed -n "s/MemTotal: *//p" /proc/meminfo)'
  [ "$(nproc)" -gt 1 ] || skip "the node has one processor"
  for handler in runc crun gvisor; do
    plain=$(runs "$handler" "$command")
    seen=$(CASE=$CASE-asked runs "$handler" "$command" "$annotation" "$annotation")
    equal "$handler" "$plain" "$seen"
    has "$handler" "$(nproc) " "$seen"
  done
}
