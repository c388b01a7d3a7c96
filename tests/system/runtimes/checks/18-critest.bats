# The specs of critest for two containerds with the settings of docs/second-daemon.md: each spec ends in the same way
# directly and through criswitch. 16-second-daemon.bats runs those of NRI, which containerd does not always pass. Some
# specs fail in both ways, because the suite has no image with nginx or ipcs. Only the nightly lane of tests/run.sh builds
# critest.

load helpers.bash

setup_file() {
  command -v critest >/dev/null || return 0
  export RUNS=$DIR/critest
  mkdir -p "$RUNS"
  push_images
  start_switch twins
}

teardown_file() {
  end_remaining TERM twins
}

# push_images: puts busybox into the registry under the names of critest's images, and lets the containerds ask this
# registry for the names of two public ones. A web server is busybox's, which has a page and a file with its pid.
push_images() {
  local host serve name
  serve='mkdir -p /var/run; echo httpd; echo $$ >/var/run/nginx.pid; exec httpd -f -v -h /www -p'
  printf 'root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/www:/bin/sh\ndefault-user:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' \
    >"$RUNS/passwd"
  printf 'root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n' >"$RUNS/group"
  echo page >"$RUNS/index.html"
  cp -r "$IMAGES/busybox" "$RUNS/busybox"
  for name in passwd:/etc/passwd group:/etc/group index.html:/www/index.html; do
    umoci insert --image "$RUNS/busybox:1" "$RUNS/${name%%:*}" "${name#*:}"
  done
  for name in latest tag:test tag:all 1:latest 2:latest 3:latest; do
    push "k8s-staging-cri-tools/test-image-$name" --config.label "name=$name"
  done
  umoci config --image "$RUNS/busybox:1" --tag pushed
  for name in 1 2 3; do
    publish "k8s-staging-cri-tools/test-image-tags:$name"
  done
  push k8s-staging-cri-tools/test-image-user-uid --config.user 1002
  push k8s-staging-cri-tools/test-image-user-username --config.user www-data
  push k8s-staging-cri-tools/test-image-user-uid-group --config.user 1003:1003
  push k8s-staging-cri-tools/test-image-user-username-group --config.user www-data:www-data
  push k8s-staging-cri-tools/test-image-predefined-group --config.user 1000
  push k8s-staging-cri-tools/hostnet-nginx-amd64 --config.cmd sh --config.cmd -c --config.cmd "$serve 12003"
  push e2e-test-images/nginx:1.14-2 --config.cmd sh --config.cmd -c --config.cmd "$serve 80"
  push e2e-test-images/httpd:2.4.39-4 --config.cmd sh --config.cmd -c --config.cmd "$serve 80"
  push e2e-test-images/busybox:1.29-2
  skopeo copy -q --dest-tls-verify=false "oci:$IMAGES/pause:1" "docker://$(registry_address)/pause:3.9"
  for host in gcr.io registry.k8s.io k8s.gcr.io; do
    cp -r "$DIR/certs.d/registry.test" "$DIR/certs.d/$host"
  done
}

# push NAME[:TAG] [CONFIG-FLAG...]: puts busybox with this configuration into the registry.
push() {
  local name=$1
  [[ $name == *:* ]] || name+=:latest
  shift
  umoci config --image "$RUNS/busybox:1" --tag pushed "$@"
  publish "$name"
}

# publish NAME:TAG: puts the image that push has made last into the registry.
publish() {
  skopeo copy -q --dest-tls-verify=false "oci:$RUNS/busybox:pushed" "docker://$(registry_address)/$1"
}

# run_critest WHERE N HANDLER: runs the specs at the socket WHERE, for pods of the handler that containerd N runs. Writes
# how each ended, with its name, to the file WHERE-N.
run_critest() {
  local report=$RUNS/$1-$2.json
  critest -runtime-endpoint "unix://$DIR/$1.sock" -image-endpoint "unix://$DIR/$1.sock" -runtime-handler "$3" \
    -ginkgo.skip '\[k8s.io\] NRI' -ginkgo.flake-attempts 2 -ginkgo.no-color -ginkgo.json-report "$report" >"$RUNS/$1-$2.log" 2>&1 || true
  jq -r '.[].SpecReports[] | select(.LeafNodeType == "It") | .State + " " + (.ContainerHierarchyTexts + [.LeafNodeText] |
    join(" "))' "$report" | sort >"$RUNS/$1-$2"
}

# same N HANDLER: checks that all specs end for containerd N as they do through criswitch.
same() {
  command -v critest >/dev/null || skip "only the nightly lane of tests/run.sh builds critest"
  run_critest "containerd-$1" "$1" runc
  run_critest twins "$1" "$2"
  echo "# containerd $1: $(grep -c ^passed "$RUNS/twins-$1") of $(wc -l <"$RUNS/twins-$1") specs pass" >&3
  grep -h '^failed' "$RUNS/twins-$1" | sed 's/^/# /' >&3
  diff "$RUNS/containerd-$1-$1" "$RUNS/twins-$1" >&3
  [ "$(grep -c ^passed "$RUNS/twins-$1")" -ge 85 ]
}

@test "each spec of critest ends for the first of two containerds as it does through criswitch" {
  same 2 runc
}

@test "each spec of critest ends for the second of two containerds as it does through criswitch" {
  same 3 other
}
