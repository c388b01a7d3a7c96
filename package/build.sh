#!/usr/bin/env bash
# build.sh deb|static|windows FOLDER: builds the Debian package, a static binary, or the zip file for Windows, into
# FOLDER. The same sources and the same toolchain give the same bytes, whatever the folders are. The packages need
# cargo-about, the Debian package also cargo-deb, and the zip file the program zip and a C compiler for Windows. The
# static binary needs the Rust target $STATIC, the zip file $WINDOWS. Builds in ${CARGO_TARGET_DIR:-target/package}.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STATIC=$(uname -m)-unknown-linux-musl
WINDOWS=x86_64-pc-windows-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$TOP/target/package}
PARTS=$CARGO_TARGET_DIR/release/package

main() {
  local what=$1 folder
  mkdir -p "$2"
  folder=$(cd "$2" && pwd)
  cd "$TOP"
  forget_the_place
  "$what" "$folder"
}

# Removes the machine's paths and the time from the build. Paths in a panic begin with /criswitch or /crates.
forget_the_place() {
  local home=${CARGO_HOME:-$HOME/.cargo} registry flags
  umask 022
  export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH
  SOURCE_DATE_EPOCH=$(date --date "$(sed -n 's/^ -- .*>  //p' package/changelog | head -n 1)" +%s)
  cargo fetch --quiet --locked
  flags=(--remap-path-prefix="$TOP=/criswitch" --remap-path-prefix="$CARGO_TARGET_DIR=/criswitch/target")
  for registry in "$home"/registry/src/*; do
    flags+=(--remap-path-prefix="$registry=/crates")
  done
  CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
  export CARGO_ENCODED_RUSTFLAGS
}

deb() {
  rm -rf "$PARTS"
  mkdir -p "$PARTS/completions"
  # The build of the last crate uses only one processor, so `licences` runs in the background on another processor.
  licences &
  cargo build --quiet --release --locked --offline
  tell "$CARGO_TARGET_DIR/release/criswitch"
  wait "$!"
  cargo deb --quiet --locked --offline --no-build --output "$1/"
}

licences() {
  cargo about generate --locked --offline --fail --config package/licences.toml --output-file "$PARTS/third-party.txt" \
    package/licences.hbs
}

# Writes the manual pages, the completions and the schema of the configuration, which the program itself generates.
tell() {
  local criswitch=$1 shell
  "$criswitch" man "$PARTS/man"
  gzip --best --no-name "$PARTS"/man/*
  "$criswitch" check --schema >"$PARTS/criswitch.schema.json"
  for shell in bash zsh fish; do
    "$criswitch" completions "$shell" >"$PARTS/completions/$shell"
  done
}

static() {
  cargo build --quiet --release --locked --offline --target "$STATIC"
  cp "$CARGO_TARGET_DIR/$STATIC/release/criswitch" "$1/criswitch-$STATIC"
}

# All files get the time of the sources, because a zip file has the times of its files. The program has no symbols: the
# linker's names of import libraries are different in each build.
windows() {
  local name=criswitch-windows-amd64
  local parts=$PARTS/$name
  rm -rf "$PARTS"
  mkdir -p "$parts/docs"
  licences &
  CARGO_PROFILE_RELEASE_STRIP=symbols cargo build --quiet --release --locked --offline --target "$WINDOWS"
  wait "$!"
  cp "$CARGO_TARGET_DIR/$WINDOWS/release/criswitch.exe" package/windows/criswitch.toml LICENSE README.md "$parts"
  mv "$PARTS/third-party.txt" "$parts"
  cp -r docs/*.md docs/decisions "$parts/docs"
  find "$parts" -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
  rm -f "$1/$name.zip"
  (cd "$PARTS" && find "$name" | sort | zip --quiet -X -@ "$1/$name.zip")
}

case $#,${1:-} in
2,deb | 2,static | 2,windows) main "$@" ;;
*)
  echo "usage: build.sh deb|static|windows FOLDER" >&2
  exit 64
  ;;
esac
