#!/usr/bin/env bash
# Tests the documentation as a book: mdbook builds the book, and a headless browser opens every page. Runs as root on
# Debian with Rust. Keeps mdbook in ${CRISWITCH_CACHE:-~/.cache/criswitch}.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
VERSION=0.5.4
MDBOOK=$CACHE/mdbook-$VERSION
PACKAGES=(chromium-headless-shell python3)

# mdbook runs for less than a second, so an optimized build would take longer than it saves.
[ -x "$MDBOOK/bin/mdbook" ] ||
  CARGO_TARGET_DIR=$CACHE/mdbook-target CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug mdbook \
    --version "$VERSION" --no-default-features --features search --root "$MDBOOK"
rm -rf "$CACHE/mdbook-target"
dpkg --status "${PACKAGES[@]}" >/dev/null 2>&1 || {
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "${PACKAGES[@]}"
} >"$CACHE/apt-book.log" 2>&1

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
cd "$TOP"
MDBOOK_LOG=warn "$MDBOOK/bin/mdbook" build
TMPDIR=$WORK python3 tests/system/book/pages.py "$TOP" "$WORK/profile"
