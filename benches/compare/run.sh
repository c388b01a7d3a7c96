#!/usr/bin/env bash
# Compares criswitch with a direct call, a proxy that copies bytes, nginx, HAProxy and a proxy on grpc-go: latency,
# calls a second, processor time, memory and instructions. Prints one table with the goals, and writes compare.json to
# ${CRISWITCH_CACHE:-~/.cache/criswitch}/compare. Exits with status 1 if a subject sent a wrong byte.
#
#   benches/compare/run.sh            all works and lives of pods on a real containerd, 5 rounds: as root, about an hour
#   benches/compare/run.sh --smoke    one short round of a debug build: checks the bytes
#   benches/compare/run.sh --work unary --rounds 9
#
# CRISWITCH_STATIC names a static program of a release, which is then a subject, too.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}/compare
PACKAGES=(nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 valgrind)

main() {
  local profile=bench options=(--instructions "$@") sockets status=0
  if [ "${1:-}" = --smoke ]; then
    profile=dev
    options=(--rounds 1 --divide 500)
  fi
  prepare_programs
  if [ "$#" = 0 ]; then
    measure_lives
    options+=(--lives "$CACHE/lives.json")
  fi
  # The directory for sockets has a short path, because the path of a Unix socket has at most 107 bytes.
  sockets=$(mktemp -d)
  # shellcheck disable=SC2064 # The path must be expanded now.
  trap "rm -rf '$sockets'" EXIT
  cd "$TOP"
  LD_LIBRARY_PATH=$CACHE/root/usr/lib/$(uname -m)-linux-gnu VALGRIND_LIB=$CACHE/root/usr/libexec/valgrind \
    cargo bench --quiet --locked --profile "$profile" --bench compare -- \
    run "$sockets" --programs "$CACHE/bin" "${options[@]}" || status=$?
  [ ! -e "$sockets/compare.json" ] || cp "$sockets/compare.json" "$CACHE/compare.json"
  return "$status"
}

# Times the lives of 100 pods on a real containerd, in turn directly and through criswitch. Must run as root.
measure_lives() {
  CRISWITCH_LIVES=50 CRISWITCH_LIVES_JSON=$CACHE/lives.json "$TOP/tests/system/runtimes/run.sh" -f "the life of a pod"
}

# Downloads and unpacks Debian packages, but does not install them: an installed package would start its server.
prepare_programs() {
  mkdir -p "$CACHE/bin"
  rm -f "$CACHE/bin/criswitch-static"
  [ -z "${CRISWITCH_STATIC:-}" ] || ln -s "$(realpath "$CRISWITCH_STATIC")" "$CACHE/bin/criswitch-static"
  (cd "$TOP/benches/compare/goproxy" && CGO_ENABLED=0 go build -trimpath -o "$CACHE/bin/goproxy" .)
  [ -x "$CACHE/bin/valgrind" ] && return
  mkdir -p "$CACHE/packages"
  cd "$CACHE/packages"
  apt-get download -qq "${PACKAGES[@]}" 2>/dev/null || { apt-get update -qq && apt-get download -qq "${PACKAGES[@]}"; }
  for package in *.deb; do dpkg -x "$package" "$CACHE/root"; done
  ln -sf "$CACHE/root/usr/sbin/nginx" "$CACHE/root/usr/sbin/haproxy" "$CACHE/bin/"
  # The link leads to valgrind.bin, because the script /usr/bin/valgrind finds valgrind.bin only in its own directory.
  ln -sf "$CACHE/root/usr/bin/valgrind.bin" "$CACHE/bin/valgrind"
}

main "$@"
