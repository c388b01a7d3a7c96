#!/bin/sh
# load.sh: loads the bundle of a release, without a network. Each command first compares the files with SHA256SUMS.
#
#   load.sh verify                              compare only
#   load.sh package                             install the package for this machine with dpkg or rpm
#   load.sh image [NAME]                        import the image into containerd, as NAME (localhost/criswitch) with the
#                                               version as its tag
#   load.sh registry REPOSITORY [OPTION...]     push the image to a registry with skopeo, and pass it the options
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cd "$here"

package() {
  case $(uname -m) in
  x86_64) deb=amd64 rpm=x86_64 ;;
  aarch64) deb=arm64 rpm=aarch64 ;;
  *) fail "no package is for $(uname -m); the packages are for x86_64 and aarch64" ;;
  esac
  if command -v dpkg >/dev/null; then
    dpkg --install criswitch_*_"$deb".deb
  else
    rpm --upgrade --verbose criswitch-*."$rpm".rpm
  fi
}

fail() {
  echo "load.sh: $1" >&2
  exit 1
}

[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' load.sh >&2 && exit 64; }
command=$1
shift
sha256sum --check --strict --quiet SHA256SUMS || fail "the files are not those of the release; copy the bundle again"
case $command in
verify) ;;
package) package ;;
image) ctr --namespace k8s.io images import --base-name "${1:-localhost/criswitch}" criswitch-*-image.tar ;;
registry)
  [ $# -gt 0 ] || fail "name the repository, such as registry.example.com/criswitch"
  repository=$1
  shift
  version=$(basename criswitch-*-image.tar -image.tar | sed 's/^criswitch-//')
  skopeo copy --all "$@" oci-archive:"$(echo criswitch-*-image.tar)" "docker://$repository:$version"
  ;;
*) fail "unknown command $command; load.sh shows the commands" ;;
esac
