# shellcheck shell=bash
# Nodes: each has systemd as process 1 of namespaces, and two containerds and a kubelet as units. It is joined to the
# kube-apiserver of cluster.bash, which is outside of the nodes.

NODE=$CHECKS
TESTS=$(dirname "$NODE")
# The unit in which `criswitch node` changes a node.
APPLY=criswitch-apply.service

# select_node [N]: makes node N, or the first one, the node of all functions. Sets its name, the end of names of its files,
# and the names and addresses of the two ends of the link between the machine and the node.
select_node() {
  local n=${1:-1}
  SUFFIX=
  [ "$n" = 1 ] || SUFFIX=-$n
  NAME=node$SUFFIX
  LINKS=("$BRIDGE-$((2 * n - 1))" "$BRIDGE-$((2 * n))")
  OUTSIDE=$SUBNET_PREFIX.0.$((4 * n - 3)) INSIDE=$SUBNET_PREFIX.0.$((4 * n - 2))
}

# at N COMMAND...: runs the command with node N selected.
at() {
  local SUFFIX NAME LINKS OUTSIDE INSIDE
  select_node "$1"
  "${@:2}"
}

select_node
# shellcheck disable=SC2034 # cluster.bash uses it.
API=$OUTSIDE

# start_link: makes the link, with the machine's address.
start_link() {
  wait_for 120 "the link of $NAME" add_link
}

# add_link: makes the link; a condition for wait_for. The kernel removes the link of an earlier node some time after that
# node's last process has ended.
add_link() {
  ip link delete "${LINKS[0]}" 2>/dev/null
  ip link add "${LINKS[0]}" type veth peer name "${LINKS[1]}" && ip address add "$OUTSIDE/30" dev "${LINKS[0]}" &&
    ip link set "${LINKS[0]}" up
}

# start_node_of_systemd: boots the node, which joins the cluster, with the images and the program of criswitch.
start_node_of_systemd() {
  local folder=$DIR/$NAME image n
  # An earlier node leaves its files.
  rm -rf "$folder"
  mkdir -p "$folder"/{backends,units,archives,disk}
  mount -t tmpfs -o mode=755 disk "$folder/disk" || return
  cp "$NODE"/*.service "$folder/units"
  for image in pause busybox; do
    skopeo copy -q "oci:$IMAGES/$image:1" "docker-archive:$folder/archives/$image.tar:registry.test/$image:1" || return
  done
  printf '#!/bin/bash\nset -eu\nDIR=%q NAME=%q INSIDE=%q\n. %q\n. %q\nfill_root\n' "$DIR" "$NAME" "$INSIDE" \
    "$REAL/setup.sh" "$NODE/root.bash" >"$folder/prepare"
  chmod +x "$folder/prepare"
  boot_node || return
  for n in 1 2; do
    for image in pause busybox; do
      import_image "$n" "$image" || return
    done
  done
  cp "$CRISWITCH" "${CRISWITCH}d" "$(root)/root"
}

# import_image N NAME: imports an image of the node's archives into its containerd N.
import_image() {
  in_node env "$(cat "$(root)/etc/containerd/$1.env")" ctr -a "/run/containerd-$1.sock" -n k8s.io images import \
    "/opt/images/$2.tar" >/dev/null 2>&1
}

# boot_node: boots the node with the disk that it has, and links it with the machine.
boot_node() {
  local folder=$DIR/$NAME n
  rm -f "$folder/pid"
  # shellcheck disable=SC2016 # The inner shell expands these.
  start_program "$NAME" env NAME="$NAME" bash -euc '. "$1"; enter_cgroups; exec "$2" "$3"' bash "$NODE/root.bash" \
    "$TESTS/systemd/boot.sh" "$folder"
  wait_for 60 "the node's process 1" test -s "$folder/pid" || fail "$(cat "$DIR/$NAME.log")" || return
  ip link set "${LINKS[1]}" name eth0 netns "$(cat "$folder/pid")" &&
    wait_for 60 "the address of the node" in_node ip address replace "$INSIDE/30" dev eth0 && in_node ip link set eth0 up &&
    in_node ip route replace default via "$OUTSIDE" && wait_for 60 "systemd" in_node systemctl is-system-running --wait ||
    return
  for n in 1 2; do
    render crictl.yaml "$DIR/crictl-$n$SUFFIX.yaml" "SOCKET=$(root)/run/containerd-$n.sock"
  done
}

# lose_power: kills process 1 of the node, and with it all its processes. Only the disk stays.
lose_power() {
  kill -KILL "$(cat "$DIR/$NAME/pid")" && wait_for 60 "the end of the node" test -s "$DIR/$NAME.exit"
}

# in_node COMMAND...: runs a command in the node.
in_node() {
  nsenter --target="$(cat "$DIR/$NAME/pid")" --mount --pid --cgroup --net --root --wdns=/ "$@" </dev/null
}

# node ARGUMENT...: runs `criswitch node` in the node.
node() {
  in_node /root/criswitch node "$@"
}

# has_ended: succeeds when no change is under way; a condition for wait_for.
has_ended() {
  local state
  state=$(in_node systemctl show --value --property=ActiveState "$APPLY") || return
  echo "$state"
  [[ $state == inactive || $state == failed ]]
}

# would_change: succeeds when a plan would change the node; a condition for wait_for.
would_change() {
  node plan --spec /root/spec.toml || [ $? = 2 ]
}

# specify GENERATION: writes the specification of the node.
specify() {
  sed "s/@GENERATION@/$1/" "$NODE/spec.toml" >"$(root)/root/spec.toml"
}

# root: prints the path of the node's root.
root() {
  echo "/proc/$(cat "$DIR/$NAME/pid")/root"
}

# everything: prints each pod and container of the containerds, apart from those of the chart, with its attempt, times,
# state, process and the start of the process. Omits pods that are not ready, because the kubelet removes them.
everything() {
  local line
  wait_for 60 "the state of all pods and containers" inspect_all "$DIR/$NAME-all" || return
  jq -r 'if type == "array" then .[] else . end | [.status.id, .status.metadata.name, .status.metadata.attempt,
    .status.createdAt, .status.startedAt, .status.state, .info.pid] | join(" ") | select(test("criswitch|SANDBOX_NOTREADY") | not)' \
    "$DIR/$NAME-all" | sort | while read -r line; do
    echo "$line $(cut -d ' ' -f 22 "$(root)/proc/${line##* }/stat" 2>/dev/null)"
  done
}

# inspect_all FILE: writes the states of all pods and containers to the file. Fails if one of them is removed meanwhile; a
# condition for wait_for.
inspect_all() {
  local n ids
  for n in 1 2; do
    ids=$(crictl_at "$n$SUFFIX" pods -q) && xargs -r crictl --config "$DIR/crictl-$n$SUFFIX.yaml" inspectp <<<"$ids" &&
      ids=$(crictl_at "$n$SUFFIX" ps -q) && xargs -r crictl --config "$DIR/crictl-$n$SUFFIX.yaml" inspect <<<"$ids" ||
      return
  done >"$1"
}

# image_of_criswitch: makes an image of the programs, with the libraries of this machine that it needs, for the chart.
image_of_criswitch() {
  local root=$DIR/criswitch.root IMAGES=$DIR/image program file
  mkdir -p "$root/usr/bin" "$IMAGES"
  for program in "$CRISWITCH" "${CRISWITCH}d"; do
    strip --strip-debug -o "$root/usr/bin/${program##*/}" "$program"
  done
  for file in $(ldd "$CRISWITCH" "${CRISWITCH}d" | grep -o '/[^ ]* ' | sort -u); do
    cp --parents "$file" "$root"
  done
  # shellcheck source=tests/system/runtimes/images.sh
  . "$REAL/images.sh"
  layout criswitch "$root" --config.entrypoint /usr/bin/criswitch --config.user 65532:65532
}

# import_criswitch: imports the image of criswitch into the containerd that the kubelet uses.
import_criswitch() {
  skopeo copy -q "oci:$DIR/image/criswitch:1" \
    "docker-archive:$DIR/$NAME/archives/criswitch.tar:localhost/criswitch:$(version_of_chart)" && import_image 2 criswitch
}

version_of_chart() {
  sed -n 's/^appVersion: //p' "$TOP/deploy/chart/Chart.yaml"
}

# files_of_node: prints every path below the directories that criswitch changes, with kind, mode, owner, target and hash,
# without the journal. The content of criswitch's register differs after each boot.
files_of_node() {
  (
    cd "$(root)" && find etc opt var/lib/criswitch var/lib/kubelet/*.* \( -path opt/partners -o -path opt/images \
      -o -path var/lib/criswitch/node \) -prune -o -path var/lib/criswitch -o -printf '%y %m %U %G %l %p\n' \
      -type f ! -name backends.register -exec sha256sum {} \; 2>/dev/null
  ) | sort
}

# watch_heartbeats: records from now on when the API server gets a status of the node, and whether the node is Ready.
watch_heartbeats() {
  # shellcheck disable=SC2016 # The inner shell expands these.
  in_background "$BATS_TEST_TMPDIR/beats" bash -c '. "$1"; heartbeats "$2" "$3"' bash "$NODE/node.bash" "$API" \
    "$(kept api.port)"
  wait_for 60 "the first status of the node" test -s "$BATS_TEST_TMPDIR/beats"
}

heartbeats() {
  curl -ksSN -H 'Authorization: Bearer token' "https://$1:$2/api/v1/nodes?watch=true" |
    jq --unbuffered -r '.object.status.conditions[] | select(.type == "Ready") | .status' |
    while read -r status; do echo "$EPOCHREALTIME $status"; done
}

# longest_silence: prints the longest time in seconds from one heartbeat with a Ready node to the next, until now.
longest_silence() {
  awk '$2 == "True" {if (last && $1 - last > most) most = $1 - last; last = $1} END {printf "%.1f\n", most}' \
    "$BATS_TEST_TMPDIR/beats"
}

# is_ready: succeeds when the node is Ready; a condition for wait_for.
is_ready() {
  api "api/v1/nodes/$NAME" | jq -e '.status.conditions[] | select(.type == "Ready") | .status == "True"'
}

# end_node: ends all nodes and their cluster; for teardown_file.
end_node() {
  local program disk name n
  for disk in "$DIR"/node*/disk; do
    mountpoint -q "$disk" || continue
    name=$(basename "$(dirname "$disk")")
    n=${name#node}
    end_program TERM "$name" || true
    at "${n:+${n#-}}" remove_link
    wait_for 60 "the end of $name" umount "$disk" || true
  done
  for program in controllers scheduler nfd-master apiserver etcd; do
    [ ! -e "$DIR/$program.pid" ] || [ -e "$DIR/$program.exit" ] || end_program KILL "$program" || true
  done
}

# remove_link: removes the link, if the kernel has not removed it yet.
remove_link() {
  ip link delete "${LINKS[0]}" 2>/dev/null || true
}

# same WHAT EXPECTED ACTUAL: compares two texts, and prints only the lines that differ.
same() {
  local differences
  differences=$(diff <(echo "$2") <(echo "$3")) || fail "$1: $differences"
}
