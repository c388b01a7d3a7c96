#!/usr/bin/env bash
# build.sh release FOLDER [TARGET...]: makes the files of a release in FOLDER, which must be absent or empty:
#
#   criswitch-VERSION-linux-ARCH            the static program with the commands
#   criswitchd-VERSION-linux-ARCH           the static program of the daemon
#   criswitch_VERSION-1_ARCH.deb            the Debian package
#   criswitch-VERSION-1.ARCH.rpm            the RPM package
#   criswitch-VERSION-sysext-ARCH.raw       the image for systemd-sysext
#   criswitch-VERSION-windows-amd64.zip     the programs for Windows
#   criswitch-VERSION-image.tar             the container image, as an OCI layout with an index of the architectures
#   criswitch-VERSION-chart.tgz             the Helm chart
#   criswitch-VERSION-kubectl.tar.gz        the plug-in of kubectl
#   criswitch-VERSION-krew.yaml             the manifest with which krew installs the plug-in
#   criswitch-VERSION-man-completions.tar.gz
#   criswitch-VERSION-TARGET.cdx.json       the SBOM: the crates that are linked into the programs
#   criswitch-VERSION-provenance.json       the commit, the toolchain and the command
#   criswitch-VERSION-notes.md              the section of CHANGELOG.md
#   criswitch-VERSION-bundle.tar            image, packages, chart and SBOMs with load.sh, which needs no network
#   SHA256SUMS
#
# TARGET limits the programs to some of Rust's targets. The same sources and the same toolchain give the same bytes,
# whatever the folders are. `package/tools.sh` installs the programs that this script needs. CRISWITCH_COMMIT names the
# commit of sources that are not a clean git work tree. Build results are in ${CARGO_TARGET_DIR:-target/package}. If
# anything fails, FOLDER stays as it was. Tests save time: CRISWITCH_PROFILE names a profile of Cargo.toml that builds
# faster than `release`, and CRISWITCH_THIRD_PARTY names a file with the texts of the licences.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGETS=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-pc-windows-gnu)
PROGRAMS=(cargo cargo-auditable nfpm jq mksquashfs dpkg-deb gzip zip sha256sum)
# This machine's target. Its program writes the manual pages and the completions.
OWN=$(uname -m)-unknown-linux-musl
PROFILE=${CRISWITCH_PROFILE:-release}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$TOP/target/package}
export PARTS=$CARGO_TARGET_DIR/parts

# shellcheck source=package/image.sh
. "$TOP/package/image.sh"

main() {
  local folder
  folder=$(realpath --canonicalize-missing -- "$1")
  shift
  [ $# = 0 ] || TARGETS=("$@")
  cd "$TOP"
  check "$folder"
  describe
  forget_the_place
  mkdir -p "$(dirname "$folder")"
  WORK=$(mktemp -d "$(dirname "$folder")/.release-XXXXXX")
  trap 'rm -rf "$WORK"' EXIT
  OUT=$WORK/out
  mkdir "$OUT"
  compile
  describe_program
  images=()
  for target in "${TARGETS[@]}"; do
    sbom "$target"
    case $target in
      *-windows-*) windows "$target" ;;
      *) linux "$target" ;;
    esac
  done
  chart
  plugin
  [ "${#images[@]}" = 0 ] || image "$OUT/criswitch-$VERSION-image.tar" "${images[@]}"
  [ "${#images[@]}" = 0 ] || bundle
  finish
  [ ! -d "$folder" ] || rmdir "$folder"
  mv "$OUT" "$folder"
}

# check FOLDER: ends with one error if a release cannot be built.
check() {
  local program target sysroot changes missing=()
  [ ! -e "$1" ] || { [ -d "$1" ] && [ -z "$(ls -A "$1")" ]; } || fail "$1 exists and is not an empty folder; name another folder"
  [[ ${TARGETS[*]} != *windows* ]] || PROGRAMS+=(x86_64-w64-mingw32-gcc)
  [ -n "${CRISWITCH_THIRD_PARTY:-}" ] || PROGRAMS+=(cargo-about)
  for program in "${PROGRAMS[@]}"; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  [ "${#missing[@]}" = 0 ] || fail "missing programs: ${missing[*]}; run package/tools.sh, and add the folders that it prints to PATH"
  sysroot=$(rustc --print sysroot)
  [ -z "$(printf '%s\n' "${TARGETS[@]}" | sort | uniq --repeated)" ] || fail "a target is named twice"
  for target in "${TARGETS[@]}" "$OWN"; do
    [[ $target =~ ^(x86_64|aarch64)-unknown-linux-musl$|^x86_64-pc-windows-gnu$ ]] ||
      fail "unknown target $target; known targets: x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-pc-windows-gnu"
    [ -d "$sysroot/lib/rustlib/$target/lib" ] || fail "the toolchain lacks the target $target; run: rustup target add $target"
  done
  if [ -z "${CRISWITCH_COMMIT:-}" ]; then
    [ -e .git ] || fail "these sources are not a git work tree; set CRISWITCH_COMMIT to their commit"
    changes=$(git status --porcelain 2>&1) || fail "git cannot read the work tree: ${changes%%$'\n'*}"
    [ -z "$changes" ] || fail "the work tree has changes that are not committed; commit them, or set CRISWITCH_COMMIT"
  fi
}

fail() {
  echo "build.sh: $1" >&2
  exit 1
}

# Reads the version and the addresses from Cargo.toml.
describe() {
  local package
  package=$(cargo metadata --locked --no-deps --format-version 1 | jq '.packages[] | select(.name == "criswitch")')
  value() { jq -r ".$1" <<<"$package"; }
  VERSION=$(value version) HOMEPAGE=$(value repository) DOCUMENTATION=$(value documentation)
  DESCRIPTION=$(value description) MAINTAINER=$(value metadata.criswitch.maintainer)
  COMMIT=${CRISWITCH_COMMIT:-$(git rev-parse HEAD)}
  RUSTC=$(rustc --version)
  export VERSION HOMEPAGE MAINTAINER CRISWITCH_COMMIT=${COMMIT:0:12}
}

# Removes the machine's paths and the time from the build. Paths in a panic begin with /criswitch or /crates. The linker
# comes with Rust, so that it is the same on every machine.
forget_the_place() {
  local home=${CARGO_HOME:-$HOME/.cargo} registry flags
  umask 022
  export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH CARGO_ENCODED_RUSTFLAGS
  SOURCE_DATE_EPOCH=$(date --date "$(sed -n 's/^ -- .*>  //p' package/changelog | head -n 1)" +%s)
  CREATED=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%FT%TZ)
  cargo fetch --quiet --locked --offline 2>/dev/null || cargo fetch --quiet --locked
  flags=(--remap-path-prefix="$TOP=/criswitch" --remap-path-prefix="$CARGO_TARGET_DIR=/criswitch/target")
  for registry in "$home"/registry/src/*; do
    flags+=(--remap-path-prefix="$registry=/crates")
  done
  CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
  export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
}

# Compiles all targets at once: the last crate of each target uses only one processor. Each program has the list of its
# crates, in which scanners look for advisories.
compile() {
  local targets=("${TARGETS[@]/#/--target=}")
  rm -rf "$PARTS"
  mkdir -p "$PARTS"
  licences &
  cargo auditable build --quiet --profile "$PROFILE" --locked --offline "${targets[@]}" --target="$OWN" \
    --message-format=json-render-diagnostics >"$PARTS/build.json"
  wait "$!"
}

# Writes the texts of the licences of all crates.
licences() {
  if [ -n "${CRISWITCH_THIRD_PARTY:-}" ]; then
    cp "$CRISWITCH_THIRD_PARTY" "$PARTS/third-party.txt"
  else
    cargo about generate --locked --offline --fail --config package/licences.toml --output-file "$PARTS/third-party.txt" \
      package/licences.hbs
  fi
}

# Writes the manual pages, the completions and the schema of the configuration, which the program itself generates.
describe_program() {
  local criswitch=$CARGO_TARGET_DIR/$OWN/$PROFILE/criswitch shell file
  "$criswitch" man "$PARTS/man"
  gzip --best --no-name "$PARTS"/man/*
  gzip --best --no-name --stdout package/changelog >"$PARTS/changelog.Debian.gz"
  "$criswitch" check --schema >"$PARTS/criswitch.schema.json"
  mkdir "$PARTS/completions"
  for shell in bash:criswitch.bash zsh:_criswitch fish:criswitch.fish; do
    file=${shell#*:}
    "$criswitch" completions "${shell%%:*}" >"$PARTS/completions/$file"
    "$criswitch" completions "${shell%%:*}" --daemon >"$PARTS/completions/${file/criswitch/criswitchd}"
  done
  pack "$PARTS" man completions criswitch.schema.json | gzip --best --no-name >"$OUT/criswitch-$VERSION-man-completions.tar.gz"
}

# linux TARGET: the programs, the packages, and the tree for the images.
linux() {
  local arch=arm64 name=arm64 tree
  case $1 in x86_64-*) arch=amd64 name=x86-64 ;; esac
  PROGRAM=$OUT/criswitch-$VERSION-linux-$arch DAEMON=$OUT/criswitchd-$VERSION-linux-$arch
  cp "$CARGO_TARGET_DIR/$1/$PROFILE/criswitch" "$PROGRAM"
  cp "$CARGO_TARGET_DIR/$1/$PROFILE/criswitchd" "$DAEMON"
  export PROGRAM DAEMON ARCH=$arch
  nfpm package --config package/nfpm.yaml --packager deb --target "$OUT" >/dev/null
  nfpm package --config package/nfpm.yaml --packager rpm --target "$OUT" >/dev/null
  tree=$WORK/$arch
  dpkg-deb --extract "$OUT"/criswitch_*_"$arch".deb "$tree"
  rm -r "${tree:?}/etc"
  images+=("$arch:$tree")
  # systemd looks for the file with the name of the image, as it is in /var/lib/extensions.
  mkdir -p "$WORK/sysext-$arch/usr/lib/extension-release.d"
  cp -r "$tree/usr" "$WORK/sysext-$arch"
  printf 'ID=_any\nARCHITECTURE=%s\nEXTENSION_RELOAD_MANAGER=1\n' "$name" \
    >"$WORK/sysext-$arch/usr/lib/extension-release.d/extension-release.criswitch"
  mksquashfs "$WORK/sysext-$arch" "$OUT/criswitch-$VERSION-sysext-$arch.raw" -quiet -no-progress -all-root -no-xattrs \
    -reproducible >/dev/null
}

# windows TARGET: the zip file. All files get the time of the sources, because a zip file has the times of its files. The
# programs have no symbols: the linker's names of import libraries are different in each build.
windows() {
  local name=criswitch-$VERSION-windows-amd64
  local parts=$WORK/$name
  mkdir -p "$parts/docs"
  cp "$CARGO_TARGET_DIR/$1/$PROFILE"/criswitch{,d}.exe package/windows/criswitch.toml LICENSE README.md \
    "$PARTS/third-party.txt" "$parts"
  x86_64-w64-mingw32-strip "$parts"/*.exe
  cp -r docs/*.md docs/decisions "$parts/docs"
  find "$parts" -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
  (cd "$WORK" && find "$name" | sort | zip --quiet -X -@ "$OUT/$name.zip")
}

# sbom TARGET: writes the SBOM of the programs for the target.
sbom() {
  local sums
  sums=$(awk -F '"' '/^name = / {name = $2} /^version = / {version = $2} /^checksum = / {print name " " version, $2}' Cargo.lock |
    jq -Rn '[inputs | capture("^(?<key>\\S+ \\S+) (?<value>\\S+)$")] | from_entries')
  cargo metadata --locked --offline --format-version 1 --filter-platform "$1" |
    jq --slurpfile build "$PARTS/build.json" --argjson sums "$sums" --arg target "$1" --arg profile "$PROFILE" \
      --arg rustc "$RUSTC" --from-file package/sbom.jq >"$OUT/criswitch-$VERSION-$1.cdx.json"
}

# pack FOLDER FILE...: a tar archive with neither owners nor times.
pack() {
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    --mode=u=rwX,go=rX --directory "$@"
}

chart() {
  cp -rL deploy/chart "$WORK/criswitch"
  pack "$WORK" criswitch | gzip --best --no-name >"$OUT/criswitch-$VERSION-chart.tgz"
}

# The plug-in of kubectl, and its manifest.
plugin() {
  local name=criswitch-$VERSION-kubectl.tar.gz
  mkdir "$WORK/kubectl"
  cp deploy/kubectl/kubectl-criswitch LICENSE "$WORK/kubectl"
  pack "$WORK/kubectl" kubectl-criswitch LICENSE | gzip --best --no-name >"$OUT/$name"
  sed -e "s|@VERSION@|$VERSION|g" -e "s|@HOMEPAGE@|$HOMEPAGE|g" \
    -e "s|@SHA256@|$(sha256sum <"$OUT/$name" | cut -d ' ' -f 1)|" deploy/kubectl/krew.yaml >"$OUT/criswitch-$VERSION-krew.yaml"
}

# The folder in the bundle has its own checksums, so that load.sh can compare the files.
bundle() {
  local name=criswitch-$VERSION-bundle
  mkdir "$WORK/$name"
  (cd "$OUT" && ln ./*-image.tar ./*.deb ./*.rpm ./*-chart.tgz ./*.cdx.json "$WORK/$name")
  cp package/load.sh "$WORK/$name"
  (cd "$WORK/$name" && sha256sum -- * >../bundle-sums && mv ../bundle-sums SHA256SUMS)
  pack "$WORK" "$name" >"$OUT/$name.tar"
}

# The notes, the provenance and the checksums.
finish() {
  awk -v version="$VERSION" '/^## / {found = index($0, "## " version) == 1; next} found' CHANGELOG.md |
    sed -e '/./,$!d' >"$OUT/criswitch-$VERSION-notes.md"
  (cd "$OUT" && sha256sum -- *) |
    jq -Rn --from-file package/provenance.jq --arg repository "$HOMEPAGE" --arg version "$VERSION" --arg commit "$COMMIT" \
      --arg rustc "$RUSTC" --arg profile "$PROFILE" --arg epoch "$SOURCE_DATE_EPOCH" \
      --arg command "package/build.sh release FOLDER ${TARGETS[*]}" \
      >"$WORK/provenance.json"
  mv "$WORK/provenance.json" "$OUT/criswitch-$VERSION-provenance.json"
  (cd "$OUT" && sha256sum -- * >"$WORK/SHA256SUMS")
  mv "$WORK/SHA256SUMS" "$OUT"
}

if [ $# -lt 2 ] || [ "$1" != release ]; then
  echo "usage: build.sh release FOLDER [TARGET...]" >&2
  exit 64
fi
main "${@:2}"
