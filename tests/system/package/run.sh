#!/usr/bin/env bash
# Tests the Debian package. Two builds in different folders must give the same bytes. Then the package is installed,
# upgraded under load, removed and purged on a separate machine. Also tests the static binary, and the zip file for
# Windows. Runs as root on Debian 12 with Rust and Go. Keeps build results in ${CRISWITCH_CACHE:-~/.cache/criswitch}, so
# that a second run is quick.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
HERE=$CACHE/package
CARGO=${CARGO_HOME:-$HOME/.cargo}
STATIC=$(uname -m)-unknown-linux-musl
WINDOWS=x86_64-pc-windows-gnu

main() {
  [ "$(id -u)" = 0 ] || { echo "run these tests as root"; exit 1; }
  mkdir -p "$HERE"
  install_what_is_missing
  build_twice
  build_static
  build_zip
  (cd "$TOP/tests/system/restart/client" && go build -trimpath -mod=readonly -o "$CACHE/restarts-client" .)
  cd "$TOP"
  CRISWITCH_PACKAGE=$(echo "$HERE"/one/*.deb) RESTARTS_CLIENT=$CACHE/restarts-client \
    cargo test --quiet --locked --test package -- --ignored --nocapture
}

install_what_is_missing() {
  if ! has_all /lib/systemd/systemd nsenter pgrep findmnt dpkg-shlibdeps readelf x86_64-w64-mingw32-gcc zip unzip; then
    {
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends \
        systemd util-linux procps dpkg-dev binutils gcc-mingw-w64-x86-64 zip unzip
    } >"$CACHE/apt-package.log" 2>&1
  fi
  tool cargo-deb 3.8.0
  tool cargo-about 0.9.3 --features cli
}

# has_all PROGRAM...: whether all programs exist. `command -v` succeeds if one of several programs exists.
has_all() {
  local program
  for program; do command -v "$program" >/dev/null || return; done
}

# tool NAME VERSION OPTION...: installs a cargo command once. A full optimization would take longer than it saves.
tool() {
  local name=$1 version=$2 root=$CACHE/$1-$2
  shift 2
  [ -x "$root/bin/$name" ] ||
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
      CARGO_TARGET_DIR=$CACHE/$name-target \
      cargo install --quiet --locked "$name" --version "$version" --root "$root" "$@"
  rm -rf "$CACHE/$name-target"
  PATH=$root/bin:$PATH
}

# The two builds use different folders for the sources, the build results and cargo's own files. They run in parallel,
# because the last crate of each build uses only one processor.
build_twice() {
  local one two failed=0
  other_home "$HERE/cargo"
  build one "$HERE/sources" "$CARGO" &
  one=$!
  build two "$HERE/an/other/place" "$HERE/cargo" &
  two=$!
  wait "$one" || failed=1
  wait "$two" || failed=1
  [ "$failed" = 0 ]
  cmp "$HERE"/one/*.deb "$HERE"/two/*.deb
  echo "built twice to the same bytes: $(cd "$HERE/one" && sha256sum ./*.deb)"
}

# build NAME SOURCES CARGO_HOME: copies the sources to SOURCES and builds the package into $HERE/NAME.
build() {
  copy_sources "$2"
  rm -rf "${HERE:?}/$1"
  CARGO_HOME=$3 CARGO_TARGET_DIR=$HERE/$1-target "$2/package/build.sh" deb "$HERE/$1"
}

# Copies the work tree with its file times, by which cargo finds changed files.
copy_sources() {
  rm -rf "$1"
  mkdir -p "$1"
  git -C "$TOP" ls-files -z --cached --others --exclude-standard |
    tar --create --directory "$TOP" --null --files-from - --ignore-failed-read | tar --extract --directory "$1"
}

# other_home FOLDER: makes FOLDER a second CARGO_HOME with the same downloads.
other_home() {
  local entry
  rm -rf "$1"
  mkdir -p "$1"
  for entry in "$CARGO"/*; do
    [ "${entry##*/}" = bin ] || ln -s "$entry" "$1"
  done
}

build_static() {
  if ! target_is_there "$STATIC"; then
    echo "skipped: no static binary, since the toolchain's target $STATIC cannot be installed here"
    return
  fi
  CARGO_TARGET_DIR=$HERE/static-target "$HERE/sources/package/build.sh" static "$HERE/static"
  local binary=$HERE/static/criswitch-$STATIC
  if readelf --wide --program-headers --dynamic "$binary" | grep -E 'INTERP|NEEDED'; then
    echo "$binary is not static"
    return 1
  fi
  # Runs the binary on a root that has no other file than a configuration.
  mkdir -p "$HERE/static/root"
  cp "$binary" "$TOP/config/criswitch.toml" "$HERE/static/root"
  chroot "$HERE/static/root" "/${binary##*/}" --version
  chroot "$HERE/static/root" "/${binary##*/}" check --config /criswitch.toml >"$HERE/static/check"
}

# Builds the zip file in two folders. These builds are not optimized, to save time: the order of the code does not
# change whether two builds are equal.
build_zip() {
  local name=criswitch-windows-amd64.zip folder
  if ! target_is_there "$WINDOWS"; then
    echo "skipped: no zip file for Windows, since the toolchain's target $WINDOWS cannot be installed here"
    return
  fi
  for folder in sources an/other/place; do
    CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR=$HERE/windows/$folder \
      "$HERE/$folder/package/build.sh" windows "$HERE/zip/$folder"
  done
  cmp "$HERE/zip/sources/$name" "$HERE/zip/an/other/place/$name"
  unzip -l "$HERE/zip/sources/$name" | grep criswitch.exe
}

target_is_there() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || timeout 120 rustup --quiet target add "$1" 2>/dev/null
}

main
