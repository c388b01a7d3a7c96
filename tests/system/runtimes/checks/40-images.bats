# Images: each containerd has a separate store, and criswitch shows all stores as one.

load helpers.bash

OTHER=registry.test/busybox:2

setup_file() {
  run_pod runc images-runc >/dev/null
  run_pod crun images-crun >/dev/null
}

teardown_file() {
  remove_pods
}

setup() {
  forget "$BUSYBOX"
  forget "$OTHER"
}

# forget IMAGE: removes the image from both containerds, without criswitch.
forget() {
  crictl_at 1 rmi "$1" >/dev/null 2>&1 || true
  crictl_at 2 rmi "$1" >/dev/null 2>&1 || true
}

# has_image N IMAGE: succeeds if containerd N has the image.
has_image() {
  crictl_at "$1" inspecti -q "$2" >/dev/null 2>&1
}

# image_id N IMAGE: prints the image's id at containerd N.
image_id() {
  crictl_at "$1" inspecti "$2" | jq -r .status.id
}

@test "pull reaches every containerd" {
  out=$(cri pull "$BUSYBOX")
  has_image 1 "$BUSYBOX" || fail "containerd 1 has no $BUSYBOX after: $out"
  has_image 2 "$BUSYBOX" || fail "containerd 2 has no $BUSYBOX after: $out"
  has "what crictl says" "$(image_id 2 "$BUSYBOX")" "$out"
}

@test "pull for a pod reaches the pod's containerd only" {
  cri pull --pod-config "$DIR/pod-images-crun.json" "$OTHER"
  has_image 1 "$OTHER" || fail "containerd 1, which runs the pod, has no $OTHER"
  ! has_image 2 "$OTHER" || fail "containerd 2 has $OTHER too"
}

@test "a failed pull reports the cause and the image" {
  refusal=$(refusal_at criswitch pull registry.test/nosuch:1)
  has "the reason" "registry.test/nosuch:1: not found" "$refusal"
  has "the code" "code = NotFound" "$refusal"
}

@test "critest's pull that must time out does so 20 times of 20" {
  command -v critest >/dev/null || skip "only the nightly lane of tests/run.sh builds critest"
  for n in {1..20}; do
    critest -runtime-endpoint "unix://$DIR/criswitch.sock" -image-endpoint "unix://$DIR/criswitch.sock" -ginkgo.no-color \
      -ginkgo.focus "public image should timeout if requested" >"$BATS_TEST_TMPDIR/critest" 2>&1 ||
      fail "time $n: $(<"$BATS_TEST_TMPDIR/critest")"
    has "time $n" "1 Passed | 0 Failed" "$(<"$BATS_TEST_TMPDIR/critest")"
  done
}

@test "images lists an image of both containerds once" {
  cri pull "$BUSYBOX" >/dev/null
  equal "rows of $BUSYBOX" 1 "$(cri images -o json | jq "[.images[] | select(.repoTags | index(\"$BUSYBOX\"))] | length")"
  ids=$(cri images -o json | jq -r '.images[].id' | sort)
  equal "ids" "$(uniq <<<"$ids")" "$ids"
  equal "names and ids" "$(crictl_at 2 images "$BUSYBOX" | awk '{print $1, $2, $3}')" \
    "$(cri images "$BUSYBOX" | awk '{print $1, $2, $3}')"
  equal "size" $(($(size_of crictl_at 1) + $(size_of crictl_at 2))) "$(size_of cri)"
}

# size_of COMMAND...: the size of the image in the list of images that this crictl shows, in bytes.
size_of() {
  "$@" images -o json | jq "[.images[] | select(.repoTags | index(\"$BUSYBOX\")).size | tonumber] | add"
}

@test "images lists an image that only one containerd has" {
  crictl_at 1 pull "$OTHER"
  has "images" "$(image_id 1 "$OTHER")" "$(cri images -q --no-trunc)"
}

@test "inspecti finds an image by name, id and short id" {
  cri pull "$BUSYBOX" >/dev/null
  id=$(image_id 2 "$BUSYBOX")
  for name in "$BUSYBOX" "$id" "${id:7:13}"; do
    equal "inspecti $name" "$id" "$(cri inspecti "$name" | jq -r .status.id)"
  done
}

@test "inspecti finds an image that only the other containerd has, with its user" {
  crictl_at 1 pull "$OTHER"
  equal "inspecti" "$(crictl_at 1 inspecti "$OTHER" | jq -S .status)" "$(cri inspecti "$OTHER" | jq -S .status)"
  equal "the user" 1000 "$(cri inspecti "$OTHER" | jq -r '.status.uid.value // .status.uid')"
}

@test "inspecti of an image in no store reports that" {
  same_refusal 2 inspecti registry.test/nosuch:1
}

@test "a container of a pulled image runs on either containerd" {
  cri pull "$BUSYBOX" >/dev/null
  for handler in runc crun; do
    pod=$(cri pods -q --no-trunc --name "^images-$handler$")
    id=$(run_container "$pod" "images-$handler" pulled 'echo pulled')
    wait_for 60 "$handler: the end of the container" is_in_state "$id" CONTAINER_EXITED
    equal "$handler: output" pulled "$(cri logs "$id")"
    cri rm "$id"
  done
}

@test "rmi removes an image from every containerd" {
  cri pull "$BUSYBOX" >/dev/null
  cri rmi "$BUSYBOX"
  ! has_image 1 "$BUSYBOX" || fail "containerd 1 still has $BUSYBOX"
  ! has_image 2 "$BUSYBOX" || fail "containerd 2 still has $BUSYBOX"
}

@test "rmi removes an image that only the other containerd has" {
  crictl_at 1 pull "$OTHER"
  cri rmi "$OTHER"
  ! has_image 1 "$OTHER" || fail "containerd 1 still has $OTHER"
}

@test "imagefsinfo has every store, the default's first" {
  equal "mount points" "$(for n in 2 1; do echo "$DIR/containerd-$n/root/io.containerd.snapshotter.v1.overlayfs"; done)" \
    "$(cri imagefsinfo | jq -r '.status.imageFilesystems[].fsId.mountpoint')"
}

@test "the bundle of the release loads its image into a registry and into containerd, and it runs without root" {
  [ -n "${CRISWITCH_BUNDLE:-}" ] || skip "tests/run.sh has not built the bundle of the release"
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$TOP/Cargo.toml" | head -n 1)
  CONTAINERD_ADDRESS=$DIR/containerd-2.sock "$CRISWITCH_BUNDLE/load.sh" image
  has_image 2 "localhost/criswitch:$version" || fail "containerd 2 has no image of load.sh"
  "$CRISWITCH_BUNDLE/load.sh" registry "$(registry_address)/criswitch" --quiet --dest-tls-verify=false
  pod=$(run_pod runc images-release)
  cri pull --pod-config "$DIR/pod-images-release.json" "registry.test/criswitch:$version"
  id=$(run_container "$pod" images-release release '' \
    ".image.image = \"registry.test/criswitch:$version\" | .command = [\"/usr/bin/criswitch\", \"version\"]")
  wait_for 60 "the end of the container" is_in_state "$id" CONTAINER_EXITED
  has "output" "criswitch $version " "$(cri logs "$id")"
  equal "user" 65532 "$(cri inspect "$id" | jq .info.runtimeSpec.process.user.uid)"
}
