#!/usr/bin/env bash
# Tests the files of a release. Two builds in different folders must give the same bytes; these builds are not
# optimized, to save time. Then optimized packages are installed, upgraded under load, removed and purged on a separate
# machine, and the program for aarch64 runs under qemu-user. Runs as root on Debian 12 with Rust and Go. Keeps build
# results in ${CRISWITCH_CACHE:-~/.cache/criswitch}, so that a second run is quick. CRISWITCH_NIGHTLY=1, which the nightly
# lane of tests/run.sh sets, adds the tests of signatures, the programs for Windows, and the texts of the licences.
#
#   tests/system/package/run.sh             all tests
#   tests/system/package/run.sh --install   install the tools, and nothing else
#   tests/system/package/run.sh --build     build the releases, and nothing else
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
HERE=$CACHE/package
CARGO=${CARGO_HOME:-$HOME/.cargo}
STATIC=x86_64-unknown-linux-musl
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$TOP/Cargo.toml" | head -n 1)
# The sources are a copy of the work tree, which may have changes.
export CRISWITCH_COMMIT=0123456789abcdef0123456789abcdef01234567
# The targets of the quick builds. An empty list means all targets.
TARGETS=("$STATIC" aarch64-unknown-linux-musl)
# The optimized release, for this architecture only, and the quick one for these targets.
RELEASE=$HERE/one
QUICK=$HERE/two

main() {
  [ "$(id -u)" = 0 ] || { echo "run these tests as root"; exit 1; }
  mkdir -p "$HERE"
  if [ -n "${CRISWITCH_NIGHTLY:-}" ]; then
    TARGETS=()
  else
    export CRISWITCH_THIRD_PARTY=$HERE/third-party.txt
  fi
  install_what_is_missing
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || (cd "$TOP" && cargo metadata --locked --format-version 1 |
    jq -r '.packages[] | "\(.name) \(.version): \(.license)"' >"$CRISWITCH_THIRD_PARTY")
  case ${1:-} in
    --install) exit ;;
    --build) build_all; exit ;;
  esac
  reject_bad_input
  build_all
  examine_programs
  examine_sboms
  examine_image
  examine_bundle
  [ -z "${CRISWITCH_NIGHTLY:-}" ] || examine_signatures
  make_repositories
  examine_metadata
  (cd "$TOP/tests/system/restart/client" && go build -trimpath -mod=readonly -o "$CACHE/restarts-client" .)
  cd "$TOP"
  put_together "$QUICK" arm64 "$HERE/aarch64"
  CRISWITCH_PACKAGE=$RELEASE/criswitch_$VERSION-1_amd64.deb CRISWITCH_AARCH64=$HERE/aarch64 \
    CRISWITCH_REPOSITORIES=$HERE/repositories CRISWITCH_BUNDLE=$HERE/bundle RESTARTS_CLIENT=$CACHE/restarts-client \
    CRISWITCH_COMMIT=0123456789ab cargo test --quiet --locked --test package -- --ignored --nocapture
}

# put_together RELEASE ARCH FOLDER: puts the two programs of a release into a folder, under the names of an installation.
put_together() {
  local program
  mkdir -p "$3"
  for program in criswitch criswitchd; do
    cp "$1/$program-$VERSION-linux-$2" "$3/$program"
  done
}

install_what_is_missing() {
  if ! has_all /lib/systemd/systemd nsenter pgrep findmnt readelf unzip qemu-aarch64-static \
    unsquashfs apt-ftparchive createrepo_c rpmsign dnf gpg openssl; then
    {
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends \
        systemd util-linux procps binutils unzip qemu-user-static squashfs-tools apt-utils createrepo-c rpm dnf gpg openssl
    } >"$CACHE/apt-package.log" 2>&1
  fi
  PATH=$("$TOP/package/tools.sh"):$PATH
  # The library of cosign takes minutes to compile.
  [ -z "${CRISWITCH_NIGHTLY:-}" ] ||
    (cd "$TOP/tests/system/package/cosign" && CGO_ENABLED=0 go build -trimpath -mod=readonly -o "$HERE/cosign/" .)
}

# has_all PROGRAM...: whether all programs exist. `command -v` succeeds if one of several programs exists.
has_all() {
  local program
  for program; do command -v "$program" >/dev/null || return; done
}

# Each mistake is one line on standard error, and leaves the folder as it was.
reject_bad_input() {
  local folder=$HERE/rejected
  # A build that was killed leaves a folder.
  rm -rf "$folder" "$HERE"/.release-*
  mkdir "$folder"
  rejected "unknown target sparc" release "$folder" sparc
  PATH=$(path_without nfpm) rejected "missing programs: nfpm;" release "$folder"
  CRISWITCH_COMMIT='' rejected "changes that are not committed" release "$folder"
  rejected "a target is named twice" release "$folder" x86_64-unknown-linux-musl x86_64-unknown-linux-musl
  [ -z "$(ls -A "$folder")" ]
  touch "$folder/file"
  rejected "is not an empty folder" release "$folder"
  [ "$(ls -A "$folder")" = file ]
  [ -z "$(find "$HERE" -maxdepth 1 -name '.release-*')" ]
}

# rejected TEXT ARGUMENT...: build.sh of a changed work tree must end with one line that has the text.
rejected() {
  local text=$1 tree=$HERE/changed said
  shift
  rm -rf "$tree"
  copy_sources "$tree"
  git -C "$tree" init --quiet
  ! said=$("$tree/package/build.sh" "$@" 2>&1 >/dev/null) || { echo "build.sh $* succeeded"; return 1; }
  [[ $said == "build.sh: "*"$text"* && $(wc -l <<<"$said") = 1 ]] || { echo "build.sh $*: $said"; return 1; }
}

# path_without PROGRAM: PATH without the folders that have the program.
path_without() {
  local folder folders=()
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do [ -x "$folder/$1" ] || echo "$folder"; done | paste -sd :
}

# Builds the releases, unless the last ones were built from the same sources with the same toolchain.
build_all() {
  local sum
  sum=$(sources | sha256sum && rustc --version && echo "${TARGETS[*]}")
  if [ "$(cat "$HERE/built" 2>/dev/null)" != "$sum" ]; then
    build_releases
    echo "$sum" >"$HERE/built"
  fi
  diff --recursive --brief "$QUICK" "$HERE/three"
  echo "built twice to the same bytes:"
  (cd "$QUICK" && sha256sum --check --quiet SHA256SUMS && ls -sh)
}

# Builds two quick releases with different folders for the sources, the build results and cargo's own files, and the
# optimized one beside the second, because the last crate of the optimized one uses only one processor.
build_releases() {
  local optimized failed=0
  rm -f "$HERE/built"
  other_home "$HERE/cargo"
  copy_sources "$HERE/sources"
  copy_sources "$HERE/an/other/place"
  build two "$HERE/sources" "$CARGO" quick "${TARGETS[@]}"
  # The texts of the licences take a minute, and depend on Cargo.lock only.
  export CRISWITCH_THIRD_PARTY=${CRISWITCH_THIRD_PARTY:-$HERE/two-target/parts/third-party.txt}
  build one "$HERE/sources" "$CARGO" release "$STATIC" &
  optimized=$!
  build three "$HERE/an/other/place" "$HERE/cargo" quick "${TARGETS[@]}" || failed=1
  wait "$optimized" || failed=1
  [ "$failed" = 0 ]
}

# build NAME SOURCES CARGO_HOME PROFILE TARGET...: builds a release into $HERE/NAME.
build() {
  local name=$1 sources=$2 home=$3 profile=$4
  shift 4
  rm -rf "${HERE:?}/$name"
  # A smaller program is packed sooner.
  export CARGO_PROFILE_QUICK_STRIP=symbols
  CARGO_HOME=$home CARGO_TARGET_DIR=$HERE/$name-target CRISWITCH_PROFILE=$profile \
    "$sources/package/build.sh" release "$HERE/$name" "$@"
}

# Copies the work tree.
copy_sources() {
  rm -rf "$1"
  mkdir -p "$1"
  # Cargo builds files again that are newer than its last build, so all files get the current time.
  sources | tar --extract --touch --directory "$1"
}

# An archive of the work tree.
sources() {
  git -C "$TOP" ls-files -z --cached --others --exclude-standard |
    tar --create --directory "$TOP" --null --files-from - --ignore-failed-read
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

# The programs are static. One runs on a root that has no other file than a configuration.
examine_programs() {
  local binary root=$HERE/root
  for binary in "$RELEASE"/criswitch-*-linux-a*64 "$QUICK"/criswitch-*-linux-a*64; do
    if readelf --wide --program-headers --dynamic "$binary" | grep -E 'INTERP|NEEDED'; then
      echo "$binary is not static"
      return 1
    fi
  done
  put_together "$RELEASE" amd64 "$root"
  cp "$TOP/config/criswitch.toml" "$root"
  chroot "$root" /criswitch version | grep -F "criswitch $VERSION (commit ${CRISWITCH_COMMIT:0:12}, "
  chroot "$root" /criswitch check --config /criswitch.toml >/dev/null
  grep -F "unexpected argument '--end-at'" <<<"$(chroot "$root" /criswitch node undo --end-at 0 2>&1 || true)" >/dev/null
  [ -z "${CRISWITCH_NIGHTLY:-}" ] ||
    [ "$(unzip -l "$QUICK/criswitch-$VERSION-windows-amd64.zip" | grep -cE '/criswitchd?\.exe$')" = 2 ]
}

# Each SBOM lists the crates that cargo's dependency tree has for the target, without those of build scripts and macros. The
# programs list these crates, too.
examine_sboms() {
  local sbom target lacks
  for sbom in "$RELEASE"/*.cdx.json "$QUICK"/*.cdx.json; do
    target=${sbom##*/criswitch-"$VERSION"-}
    target=${target%.cdx.json}
    diff <(jq -r '.components[].purl' "$sbom" | sort) \
      <(cd "$TOP" && cargo tree --locked --package criswitch --target "$target" --edges normal,no-proc-macro --prefix none \
        --format '{p}' | tail -n +2 | sed -n 's/^\(\S*\) v\(\S*\)\( (.*)\)*$/pkg:cargo\/\1@\2/p' | sort -u)
    jq -e '.components | length > 20 and all(.licenses[0].expression and
      ((.name | startswith("criswitch-")) or (.hashes[0].content | length == 64)))' "$sbom" >/dev/null
  done
  lacks=$(comm -23 <(jq -r '.components[] | "\(.name)@\(.version)"' "$RELEASE/criswitch-$VERSION-$STATIC.cdx.json" | sort) \
    <(crates_in "$RELEASE"/criswitch{,d}-"$VERSION"-linux-amd64))
  [ -z "$lacks" ] || { echo "the programs do not list: $lacks"; return 1; }
}

# crates_in PROGRAM...: prints the crates that cargo-auditable has listed in the programs, sorted.
crates_in() {
  local program
  for program; do
    objcopy --dump-section .dep-v0="$HERE/crates" "$program" /dev/null
    python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))' <"$HERE/crates" |
      jq -r '.packages[] | "\(.name)@\(.version)"'
  done | sort -u
}

# The optimized image is small enough. The image for both architectures has no shell, and its index names them. The image
# for systemd-sysext has the same program, and the name under which systemd looks for it.
examine_image() {
  local image=$HERE/image index manifest files arch
  [ "$(stat --format %s "$RELEASE/criswitch-$VERSION-image.tar")" -le $((15 << 20)) ]
  rm -rf "$image"
  mkdir "$image"
  tar --extract --directory "$image" --file "$QUICK/criswitch-$VERSION-image.tar"
  blob() { cat "$image/blobs/sha256/${1#sha256:}"; }
  index=$(blob "$(jq -r '.manifests[0].digest' "$image/index.json")")
  [ "$(jq -c '[.manifests[].platform.architecture]' <<<"$index")" = '["amd64","arm64"]' ]
  for arch in amd64 arm64; do
    manifest=$(blob "$(jq -r --arg arch "$arch" '.manifests[] | select(.platform.architecture == $arch).digest' <<<"$index")")
    [ "$(jq -r '.annotations["org.opencontainers.image.revision"]' <<<"$manifest")" = "$CRISWITCH_COMMIT" ]
    blob "$(jq -r '.config.digest' <<<"$manifest")" | jq -e --argjson manifest "$manifest" \
      '.config | .Labels == $manifest.annotations and .User == "65532:65532"' >/dev/null
    files=$(blob "$(jq -r '.layers[0].digest' <<<"$manifest")" | tar --list --gzip)
    [ "$(grep '/bin/.' <<<"$files" | sort | tr '\n' ' ')" = "./usr/bin/criswitch ./usr/bin/criswitchd " ]
    unsquashfs -quiet -no-progress -force -dest "$HERE/sysext" "$QUICK/criswitch-$VERSION-sysext-$arch.raw" >/dev/null
    cmp "$HERE/sysext/usr/bin/criswitch" "$QUICK/criswitch-$VERSION-linux-$arch"
    cmp "$HERE/sysext/usr/bin/criswitchd" "$QUICK/criswitchd-$VERSION-linux-$arch"
    [ -f "$HERE/sysext/usr/lib/extension-release.d/extension-release.criswitch" ]
  done
}

# The script of the bundle notices a changed file. A test installs from the bundle.
examine_bundle() {
  local bundle=$HERE/bundle
  rm -rf "$bundle" "$HERE/changed-bundle"
  mkdir "$bundle"
  tar --extract --directory "$bundle" --strip-components 1 --file "$QUICK/criswitch-$VERSION-bundle.tar"
  "$bundle/load.sh" verify
  cp -r "$bundle" "$HERE/changed-bundle"
  flip_bit "$HERE/changed-bundle/criswitch-$VERSION-image.tar"
  (cd "$HERE" && ! ./changed-bundle/load.sh verify 2>said && grep --quiet "not those of the release" said)
  (cd "$HERE" && ! ./bundle/load.sh 2>said && grep --quiet "load.sh verify" said)
}

# The checksums and the image have signatures that cosign verifies without a network. One flipped bit of the checksums,
# of a file or of the image fails.
examine_signatures() {
  local here=$HERE/signed cosign=$HERE/cosign/cosign
  rm -rf "$here"
  mkdir "$here"
  cp "$QUICK"/* "$here"
  cd "$here"
  "$cosign" generate-key-pair
  "$cosign" sign-blob SHA256SUMS
  "$cosign" verify-blob SHA256SUMS
  # The signature and the key are what other programs expect, too.
  base64 --decode SHA256SUMS.sig >signature
  openssl dgst -sha256 -verify cosign.pub -signature signature SHA256SUMS
  flip_bit SHA256SUMS
  fails "$cosign" verify-blob SHA256SUMS
  cp "$QUICK/SHA256SUMS" .
  sha256sum --check --quiet SHA256SUMS
  flip_bit "criswitch-$VERSION-linux-arm64"
  fails sha256sum --check --quiet SHA256SUMS
  "$cosign" sign "$HERE/image" image
  "$cosign" verify image
  flip_bit "image/blobs/sha256/$(jq -r '.manifests[0].digest | ltrimstr("sha256:")' image/index.json)"
  fails "$cosign" verify image
  cd "$TOP"
}

# The provenance names the commit, the toolchain, the command and the files. The notes have the changes. Each package has
# the address of the project. apt finds its indexes by their hashes.
examine_metadata() {
  local address packages=$HERE/repositories/apt/dists/stable/main/binary-amd64
  jq -e --arg commit "$CRISWITCH_COMMIT" '.predicate.buildDefinition |
    .resolvedDependencies[0].digest.gitCommit == $commit and (.internalParameters.rustc | startswith("rustc ")) and
    (.externalParameters.command | startswith("package/build.sh release"))' "$QUICK"/*-provenance.json >/dev/null
  diff <(jq -r '.subject[] | "\(.digest.sha256)  \(.name)"' "$QUICK"/*-provenance.json) \
    <(grep --invert-match provenance.json "$QUICK/SHA256SUMS")
  grep --quiet '^- ' "$QUICK"/*-notes.md
  tar --extract --to-stdout --file "$QUICK"/*-man-completions.tar.gz \
    man/criswitch.8.gz completions/criswitch.bash criswitch.schema.json >/dev/null
  tar --extract --to-stdout --file "$QUICK"/*-kubectl.tar.gz kubectl-criswitch | cmp - "$TOP/deploy/kubectl/kubectl-criswitch"
  [ "$(sed -n 's/^ *sha256: "\(.*\)"$/\1/p' "$QUICK"/*-krew.yaml)" = "$(sha256sum <"$(echo "$QUICK"/*-kubectl.tar.gz)" | cut -d ' ' -f 1)" ]
  fails grep @ "$QUICK"/*-krew.yaml
  address=$(cd "$TOP" && cargo metadata --locked --no-deps --format-version 1 | jq -r '.packages[] | select(.name == "criswitch").repository')
  [ "$(dpkg-deb --field "$QUICK"/*_amd64.deb Homepage)" = "$address" ]
  [ "$(rpm --query --package --queryformat '%{URL}' "$QUICK"/*.x86_64.rpm)" = "$address" ]
  [ -f "$packages/by-hash/SHA256/$(sha256sum <"$packages/Packages" | cut -d ' ' -f 1)" ]
}

# fails COMMAND...: succeeds if the command fails.
fails() {
  if "$@" >/dev/null 2>&1; then
    echo "$* succeeded"
    return 1
  fi
}

# flip_bit FILE: changes the lowest bit of the 20th byte.
flip_bit() {
  local byte
  byte=$(od -An -tu1 -j20 -N1 "$1")
  printf '%b' "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek=20 conv=notrunc status=none
}

# Makes signed repositories with the optimized packages and the quick ones for the other architecture, and with a later
# version that has a changed program.
make_repositories() {
  local first=$HERE/first newer=$HERE/newer packager program
  export GNUPGHOME=$HERE/gnupg
  # The agent of gpg outlives the commands.
  trap 'gpgconf --kill all' EXIT
  rm -rf "$HERE/repositories" "$first" "$newer" "$GNUPGHOME"
  mkdir -p "$first" "$newer"
  cp "$RELEASE"/*_amd64.deb "$RELEASE"/*.x86_64.rpm "$QUICK"/*_arm64.deb "$QUICK"/*.aarch64.rpm "$first"
  mkdir --mode=700 "$GNUPGHOME"
  gpg --batch --quiet --passphrase '' --quick-generate-key 'Test <test@criswitch.invalid>' rsa3072 sign never
  # The kernel ignores bytes after the end of an executable.
  for program in criswitch criswitchd; do
    { cat "$RELEASE/$program-$VERSION-linux-amd64" && echo newer; } >"$newer/$program"
  done
  for packager in deb rpm; do
    (cd "$HERE/sources" && VERSION=99.0.0 ARCH=amd64 PROGRAM=$newer/criswitch DAEMON=$newer/criswitchd PARTS=$HERE/one-target/parts \
      HOMEPAGE=https://criswitch.invalid MAINTAINER='Test <test@criswitch.invalid>' \
      nfpm package --config package/nfpm.yaml --packager "$packager" --target "$newer" >/dev/null)
  done
  "$TOP/package/repositories.sh" "$first" "$HERE/repositories" test@criswitch.invalid
  fails "$TOP/package/repositories.sh" "$newer" "$HERE/without-key" nobody@criswitch.invalid
  [ ! -e "$HERE/without-key" ]
  "$TOP/package/repositories.sh" "$newer" "$HERE/repositories" test@criswitch.invalid
}

main "$@"
