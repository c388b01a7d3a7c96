#!/usr/bin/env bash
# tools.sh: installs the programs that package/build.sh needs, and prints their folders for PATH:
#
#   PATH=$(package/tools.sh):$PATH package/build.sh release FOLDER
#
# Needs root or sudo, Debian 12 or Ubuntu 24.04, Rust and Go. Keeps what it builds in
# ${CRISWITCH_CACHE:-~/.cache/criswitch}, so that a second run is quick. Versions are pinned here and in
# tools/nfpm/go.mod. With CRISWITCH_THIRD_PARTY, build.sh needs no cargo-about.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
CARGO_ABOUT_VERSION=0.9.3
CARGO_AUDITABLE_VERSION=0.7.7
TARGETS=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-pc-windows-gnu)
FOLDERS=()

main() {
  mkdir -p "$CACHE"
  install_packages jq:jq mksquashfs:squashfs-tools zip:zip x86_64-w64-mingw32-gcc:gcc-mingw-w64-x86-64
  install_targets
  [ -n "${CRISWITCH_THIRD_PARTY:-}" ] || cargo_program cargo-about "$CARGO_ABOUT_VERSION" --features cli
  cargo_program cargo-auditable "$CARGO_AUDITABLE_VERSION"
  go_tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
  (IFS=: && echo "${FOLDERS[*]}")
}

# install_packages PROGRAM:PACKAGE...: installs the packages whose program is missing.
install_packages() {
  local entry missing=() as_root=()
  for entry in "$@"; do
    command -v "${entry%%:*}" >/dev/null || missing+=("${entry#*:}")
  done
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  [ "${#missing[@]}" = 0 ] || {
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "${missing[@]}"
  } >"$CACHE/apt-tools.log" 2>&1
}

install_targets() {
  local target sysroot
  sysroot=$(cd "$HERE" && rustc --print sysroot)
  for target in "${TARGETS[@]}"; do
    [ -d "$sysroot/lib/rustlib/$target/lib" ] || (cd "$HERE" && rustup --quiet target add "$target" >&2)
  done
}

# cargo_program NAME VERSION [ARGUMENT...]: builds a program of crates.io. A full optimization would take longer than it
# saves.
cargo_program() {
  local name=$1 root=$CACHE/$1-$2
  [ -x "$root/bin/$name" ] ||
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
      CARGO_TARGET_DIR=$CACHE/$name-target \
      cargo install --quiet --locked "$name" --version "$2" --root "$root" "${@:3}" >&2
  rm -rf "$CACHE/$name-target"
  FOLDERS+=("$root/bin")
}

# go_tool NAME PACKAGE: builds the program that tools/NAME/go.mod pins, into a folder named after the pins.
go_tool() {
  local name=$1 module=$HERE/tools/$1 folder
  folder=$CACHE/tools/$name-$({ cat "$module"/go.{mod,sum} && go version; } | sha256sum | cut -c1-16)
  [ -x "$folder/$name" ] || (cd "$module" && CGO_ENABLED=0 go build -mod=readonly -trimpath -o "$folder/" "$2" >&2)
  FOLDERS+=("$folder")
}

main
