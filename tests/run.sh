#!/usr/bin/env bash
# Runs all checks: formatting, lints, dependencies, the tests, the fault simulation, the book, the units, the package,
# Windows, the demo, and the real suite. Needs Debian 12, root, Rust and Go. Installs missing tools. The build results of
# this script are in ${CRISWITCH_CACHE:-~/.cache/criswitch}, outside the tree, so that a second run is quick. All steps
# run even if one fails. The exit code is 0 only if no step failed.
set -u

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
CARGO_DENY_VERSION=0.20.2
FAILED=()

main() {
  cd "$TOP" || exit 1
  mkdir -p "$CACHE"
  step "toolchain" check_toolchain
  step "formatting" cargo fmt --check
  step "lints" cargo clippy --quiet --all-targets --locked -- -D warnings
  step "dependencies" check_dependencies
  step "scripts" check_scripts
  step "tests" run_tests
  step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --locked
  step "fault simulation" cargo run --quiet --profile suite --locked --example chaos -- --count 2000
  step "restarts" "$TOP/tests/system/restart/run.sh"
  step "book" "$TOP/tests/system/book/run.sh"
  step "systemd units" "$TOP/tests/system/systemd/run.sh"
  step "package" "$TOP/tests/system/package/run.sh"
  step "Windows" "$TOP/tests/system/windows/run.sh"
  step "metrics" "$TOP/tests/system/prometheus/run.sh"
  step "comparison" "$TOP/benches/compare/run.sh" --smoke
  step "demo" cargo run --quiet --profile demo --locked --example demo -- --once
  step "real runtimes" "$TOP/tests/system/runtimes/run.sh"
  summary
}

# step NAME COMMAND...: runs the command, and prints and records its outcome.
step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  if "$@" </dev/null; then
    printf '=== %s: ok, %s s\n' "$name" $((SECONDS - start))
  else
    printf '=== %s: FAILED, %s s\n' "$name" $((SECONDS - start))
    FAILED+=("$name")
  fi
}

summary() {
  if [ "${#FAILED[@]}" -gt 0 ]; then
    printf '\nFAILED:'
    printf ' [%s]' "${FAILED[@]}"
    printf '\n'
    exit 1
  fi
  printf '\nall steps passed in %s s\n' "$SECONDS"
}

# A minimal toolchain lacks rustfmt and clippy.
check_toolchain() {
  cargo --version && go version || return
  { cargo fmt --version && cargo clippy --version; } 2>/dev/null || rustup component add rustfmt clippy
}

# cargo-deny runs for a few seconds only, so an optimized build would take longer than it saves.
check_dependencies() {
  local root=$CACHE/cargo-deny-$CARGO_DENY_VERSION
  [ -x "$root/bin/cargo-deny" ] ||
    CARGO_TARGET_DIR=$CACHE/cargo-deny-target CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug \
      cargo-deny --version "$CARGO_DENY_VERSION" --root "$root" || return
  rm -rf "$CACHE/cargo-deny-target"
  "$root/bin/cargo-deny" --locked check bans licenses sources || return
  # The fuzz targets are not built here, but their lock file must be up to date.
  cargo metadata --quiet --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null
}

# install PROGRAM: installs the Debian package with the program's name, unless the program exists.
install() {
  [ -x "/usr/bin/$1" ] || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$1"
  } >"$CACHE/apt-$1.log" 2>&1
}

# A test checks the manual pages with mandoc, but only if mandoc is installed.
run_tests() {
  install mandoc || return
  # A test reads the commit in the log line of a start. Only a release build finds the commit itself.
  CRISWITCH_COMMIT=0123456789ab cargo test --quiet --locked
}

check_scripts() {
  install shellcheck || return
  shellcheck -x .ci/run tests/run.sh tests/fuzz/run.sh tests/system/*/*.sh tests/system/runtimes/checks/* \
    package/build.sh package/scripts/* docs/pictures/draw.sh
}

main
