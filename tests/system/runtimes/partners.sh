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

# build_partners: builds every Go program and sets PARTNERS_PATH, one folder for each partner.
build_partners() {
  PARTNERS_PATH=
  build_partner crictl "" sigs.k8s.io/cri-tools/cmd/crictl && build_critest || return
  build_partner containerd "no_btrfs no_devmapper no_zfs" \
    github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} || return
  build_partner gvisor "" gvisor.dev/gvisor/{runsc,shim} || return
  build_partner crio "containers_image_openpgp exclude_graphdriver_btrfs libsqlite3 seccomp" \
    github.com/cri-o/cri-o/cmd/crio || return
  build_partner kubernetes "" \
    k8s.io/kubernetes/cmd/{kubelet,kube-apiserver,kube-controller-manager,kube-scheduler,kubectl,kubeadm} || return
  build_partner etcd "" go.etcd.io/etcd/server/v3 || return
  build_partner node-feature-discovery "" sigs.k8s.io/node-feature-discovery/cmd/nfd-{worker,master} || return
  build_helm 3 && build_helm 4
}

# build_helm VERSION: builds helm3 or helm4.
build_helm() {
  build_partner "helm$1" "" "helm.sh/helm/v$1/cmd/helm" && ln -sf helm "${PARTNERS_PATH%%:*}/helm$1"
}

# build_critest: builds critest, which is a test, beside crictl.
build_critest() {
  [ -x "$PARTNERS_PATH/critest" ] || (cd "$REAL/partners/crictl" &&
    CGO_ENABLED=0 go test -c -mod=readonly -trimpath -o "$PARTNERS_PATH/critest" sigs.k8s.io/cri-tools/cmd/critest)
}

# build_partner NAME TAGS PACKAGE...: builds into a folder of the cache, named after a hash of everything that affects
# the result.
build_partner() {
  local name=$1 tags=$2 module=$REAL/partners/$1 mode=readonly cgo=0 edit='' key folder
  case $name in
    gvisor) may_lower_oom_score || edit=lenient_shim ;;
    crio) cgo=1 edit=pods_without_slices ;;
  esac
  key=$({
    cat "$module"/go.{mod,sum} && go version && echo "$*"
    declare -f build_partner build_pinns vendor_edited replace_line ${edit:+"$edit"}
  } | sha256sum | cut -c1-16)
  shift 2
  folder=$CACHE/partners/$name-$key
  PARTNERS_PATH=$folder${PARTNERS_PATH:+:$PARTNERS_PATH}
  [ ! -e "$folder/.done" ] || return 0
  echo "building $name (Go, a minute or two when the cache is cold)"
  rm -rf "$folder"
  mkdir -p "$folder" || return
  if [ -n "$edit" ]; then
    vendor_edited "$module" "$folder/source" "$edit" || return
    module=$folder/source mode=vendor
  fi
  (cd "$module" && CGO_ENABLED=$cgo go build -mod="$mode" -trimpath -tags "$tags" -o "$folder/" "$@") || return
  rm -rf "$folder/source"
  [ "$name" != crio ] || build_pinns "$folder" || return
  # containerd finds a shim by the name in the runtime type.
  [ ! -e "$folder/shim" ] || mv "$folder/shim" "$folder/containerd-shim-runsc-v1"
  [ ! -e "$folder/server" ] || mv "$folder/server" "$folder/etcd"
  if [ "$name" = node-feature-discovery ]; then
    cp "$(cd "$module" && go list -m -f '{{.Dir}}' "sigs.k8s.io/$name")/deployment/base/nfd-crds/nfd-api-crds.yaml" \
      "$folder/" || return
  fi
  touch "$folder/.done"
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
