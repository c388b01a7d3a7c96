# shellcheck shell=bash
# The real programs that the suite drives: built from Go modules pinned in partners/*/go.{mod,sum}, kept in the cache.
# A change of the pins, of the build functions or of the Go toolchain causes a rebuild; earlier builds stay for other
# branches.

# One Debian package per line, with a file that shows whether the package is installed.
# shellcheck disable=SC2034 # run.sh uses it.
DEBIAN_PACKAGES=(
  bats:/usr/bin/bats
  busybox-static:/usr/bin/busybox
  conmon:/usr/bin/conmon
  containerd:/usr/bin/containerd
  containernetworking-plugins:/usr/lib/cni/bridge
  crun:/usr/bin/crun
  curl:/usr/bin/curl
  docker-registry:/usr/bin/docker-registry
  gcc:/usr/bin/gcc
  iproute2:/usr/bin/ip
  jq:/usr/bin/jq
  libc6-dev:/usr/include/stdlib.h
  libseccomp-dev:/usr/include/seccomp.h
  libsqlite3-dev:/usr/include/sqlite3.h
  pkgconf:/usr/bin/pkg-config
  runc:/usr/sbin/runc
  openssl:/usr/bin/openssl
  skopeo:/usr/bin/skopeo
  umoci:/usr/bin/umoci
)

# install_debian NAME:FILE...: installs the packages whose file is missing.
install_debian() {
  local entry missing=()
  for entry in "$@"; do
    [ -e "${entry#*:}" ] || missing+=("${entry%%:*}")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  # A package's daemon must not start here, because the suite starts the daemons.
  local log=$CACHE/apt.log
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -yq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
    tail -n 20 "$log"
    return 1
  }
}

# build_partners: builds every Go program and sets PARTNERS_PATH, one folder for each partner. All programs that use the
# libraries of Kubernetes are of one module, so that each library is compiled once. CRISWITCH_NIGHTLY=1 adds what
# only the nightly lane of tests/run.sh needs: Helm 3, an older kubelet and kubeadm, containerd 1.7 and 2.3, critest, and
# node-problem-detector.
build_partners() {
  # Go compiles sooner with more memory.
  local -x GOGC=400 GOMEMLIMIT=3GiB
  PARTNERS_PATH=
  # shellcheck disable=SC2034 # The checks use it.
  HELMS=4
  build_partner containerd "no_btrfs no_devmapper no_zfs" \
    github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} || return
  build_partner gvisor "" gvisor.dev/gvisor/{runsc,shim} || return
  build_partner crio "containers_image_openpgp exclude_graphdriver_btrfs libsqlite3 seccomp" \
    github.com/cri-o/cri-o/cmd/crio || return
  build_partner kubernetes "" \
    k8s.io/kubernetes/cmd/{kubelet,kube-apiserver,kube-controller-manager,kube-scheduler,kubectl,kubeadm} \
    go.etcd.io/etcd/server/v3 sigs.k8s.io/cri-tools/cmd/crictl helm.sh/helm/v4/cmd/helm \
    sigs.k8s.io/node-feature-discovery/cmd/nfd-{worker,master} || return
  [ -z "${CRISWITCH_NIGHTLY:-}" ] || build_second_versions
}

# build_second_versions: the folders of the older Kubernetes and of the older containerds are not in PARTNERS_PATH, because
# their programs have the names of the other programs.
build_second_versions() {
  local path=$PARTNERS_PATH tags="no_btrfs no_devmapper no_zfs"
  build_critest "${path%%:*}" && build_problem_detector "${path%%:*}" || return
  build_partner kubernetes-older "" k8s.io/kubernetes/cmd/{kubelet,kubeadm} || return
  export CRISWITCH_OLDER_KUBERNETES=${PARTNERS_PATH%%:*} HELMS="3 4"
  PARTNERS_PATH=
  build_partner containerd-1.7 "$tags" github.com/containerd/containerd/cmd/{containerd,containerd-shim-runc-v2} || return
  build_partner containerd-2.3 "$tags" github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2} || return
  export CRISWITCH_OLDER_CONTAINERDS=$PARTNERS_PATH
  PARTNERS_PATH=$path
  build_partner helm3 "" helm.sh/helm/v3/cmd/helm
}

# build_critest FOLDER: builds critest, which is a test, beside crictl.
build_critest() {
  [ -x "$1/critest" ] || (cd "$REAL/partners/kubernetes" &&
    CGO_ENABLED=0 go test -c -mod=readonly -trimpath -ldflags "-s -w" -o "$1/critest" sigs.k8s.io/cri-tools/cmd/critest)
}

# build_problem_detector FOLDER: builds node-problem-detector beside crictl, without its monitors of logs and of figures.
build_problem_detector() {
  [ -x "$1/nodeproblemdetector" ] || (cd "$REAL/partners/kubernetes" &&
    CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "-s -w" \
      -tags "disable_system_log_monitor disable_system_stats_monitor disable_stackdriver_exporter" -o "$1/" \
      k8s.io/node-problem-detector/cmd/nodeproblemdetector)
}

# build_partner NAME TAGS PACKAGE...: builds into a folder of the cache, named after a hash of everything that affects
# the result.
build_partner() {
  local name=$1 tags=$2 module=$REAL/partners/$1 mode=readonly cgo=0 edit='' flags='-s -w' key folder
  case $name in
    gvisor) may_lower_oom_score || edit=lenient_shim ;;
    crio) cgo=1 edit=pods_without_slices ;;
    # Without this flag, a program of Kubernetes does not know its version, and kubeadm compares versions.
    kubernetes-older)
      flags+=" -X k8s.io/component-base/version.gitVersion=$(awk '$1 == "k8s.io/kubernetes" {print $2}' "$module/go.mod")" ;;
  esac
  key=$({
    cat "$module"/go.{mod,sum} && go version && echo "$*"
    declare -f build_partner build_pinns vendor_edited replace_line ${edit:+"$edit"}
  } | sha256sum | cut -c1-16)
  shift 2
  folder=$CACHE/partners/$name-$key
  PARTNERS_PATH=$folder${PARTNERS_PATH:+:$PARTNERS_PATH}
  [ ! -e "$folder/.done" ] || return 0
  echo "building $name (Go, a few minutes when the cache is cold)"
  rm -rf "$folder"
  mkdir -p "$folder" || return
  if [ -n "$edit" ]; then
    vendor_edited "$module" "$folder/source" "$edit" || return
    module=$folder/source mode=vendor
  fi
  # `-s -w` leaves out what only a debugger needs, so that linking takes less time.
  (cd "$module" && CGO_ENABLED=$cgo go build -mod="$mode" -trimpath -tags "$tags" -ldflags "$flags" -o "$folder/" "$@") ||
    return
  rm -rf "$folder/source"
  [ "$name" != crio ] || build_pinns "$folder" || return
  case $name in
    # containerd finds a shim by the name in the runtime type.
    gvisor) mv "$folder/shim" "$folder/containerd-shim-runsc-v1" ;;
    kubernetes)
      mv "$folder/server" "$folder/etcd" && mv "$folder/helm" "$folder/helm4" &&
        cp "$(cd "$module" && go list -m -f '{{.Dir}}' \
          sigs.k8s.io/node-feature-discovery)/deployment/base/nfd-crds/nfd-api-crds.yaml" "$folder/" ;;
    helm3) mv "$folder/helm" "$folder/helm3" ;;
  esac && touch "$folder/.done"
}

# Bit 24 of the effective set is CAP_SYS_RESOURCE.
may_lower_oom_score() {
  local caps
  caps=$(awk '/^CapEff:/ {print $2}' /proc/self/status)
  (( 0x$caps >> 24 & 1 ))
}

# vendor_edited MODULE TARGET EDIT: copies the source of a partner and changes the copy with the function EDIT. The copy
# exists only during the build.
vendor_edited() {
  mkdir -p "$2" && cp "$1"/go.{mod,sum} "$2" && (cd "$2" && go mod vendor && "$3")
}

# lenient_shim: removes an error check from gVisor's shim. The original shim ends at once if it may not lower its oom
# score, as on most sandboxed CI machines.
lenient_shim() {
  replace_line vendor/gvisor.dev/gvisor/pkg/shim/v1/manager.go 'return .*"failed to set OOM Score on shim.*' '_ = err'
}

# pods_without_slices: makes CRI-O take a pod's parent cgroup as a path. With the cgroup driver cgroupfs the original
# CRI-O reads the parent as a systemd slice when it collects the stats of a pod, so that pods have no stats.
pods_without_slices() {
  replace_line vendor/github.com/cri-o/cri-o/internal/config/cgmgr/cgroupfs_linux.go \
    '_, cgPath, err := sandboxCgroupAbsolutePath(sbParent)' 'cgPath, err := sbParent, error(nil)'
}

# replace_line FILE PATTERN LINE: replaces the line that matches the pattern. Fails if there is no such line.
replace_line() {
  grep -q "^\s*$2\$" "$1" || { echo "no line matches '$2' in $1 any more: look at this file" >&2; return 1; }
  sed -i "s/^\(\s*\)$2\$/\1$3/" "$1"
}

# build_pinns FOLDER: builds the C program with which CRI-O creates the namespaces of a pod.
build_pinns() {
  local source
  source=$(cd "$REAL/partners/crio" && go list -m -f '{{.Dir}}' github.com/cri-o/cri-o)/pinns/src &&
    gcc -std=c99 -Os -static -o "$1/pinns" "$source"/*.c
}
