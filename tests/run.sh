#!/usr/bin/env bash
# Runs the steps of the tests, all or some of them:
#
#   tests/run.sh            every step; needs Debian 12, root, Rust and Go
#   tests/run.sh quick      the steps that need only cargo; about five minutes without any build results
#   tests/run.sh STEP...    these steps
#   tests/run.sh --list     the steps, with what each needs and how long it takes
#
# Installs missing tools. Build results are in ${CRISWITCH_CACHE:-~/.cache/criswitch}, outside the tree, so that a second
# run is quick. A step that fails does not stop the others. The exit code is 0 only if no step failed.
set -u

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
CARGO_DENY_VERSION=0.20.2
# The oldest Rust that builds criswitch: rust-version in Cargo.toml.
OLDEST_RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$TOP/Cargo.toml")
FAILED=()
SIMULATE=(cargo test --quiet --profile suite --locked --example chaos)

# One step a line: name, what it needs beside cargo, minutes on two quiet cores when nothing is built yet, command.
# `quick` runs the steps that need nothing else.
STEPS="
toolchain     go           0.1  check_toolchain
formatting    -            0.1  cargo fmt --check
lints         -            1.5  cargo clippy --quiet --all-targets --locked -- -D warnings
quick-tests   -            3    quick_tests
oldest-rust   network      2    check_oldest_rust
dependencies  network      2    check_dependencies
scripts       root,go      0.5  check_scripts
partners      root,go      0.5  build_partners
tests         root,network 6    run_tests
documentation -            0.3  document
begin-faults  -            0.1  begin_faults
clients       root,network 0.5  tests/system/clients/run.sh
restarts      root,go      2    tests/system/restart/run.sh
book          root,network 1    tests/system/book/run.sh
units         root,network 4    tests/system/systemd/run.sh
metrics       root,go      2    tests/system/prometheus/run.sh
node          root,go      9    test_node
faults        -            2    test_faults
package       root,network 8    test_package
comparison    root,go      3    benches/compare/run.sh --smoke
begin-windows root,network 0.1  begin_windows
runtimes      root,go      13   test_runtimes
windows       root,network 6    test_windows
demo          -            1.5  cargo run --quiet --locked -p criswitch-demo -- --once
"
QUICK="formatting lints quick-tests"

main() {
  cd "$TOP" || exit 1
  trap end_background EXIT
  case ${1:-} in
    --help | -h) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
    --list) list ;;
    quick) run $QUICK ;;
    "") run $(names | grep -vx quick-tests) ;;
    *) run "$@" ;;
  esac
}

names() { awk 'NF {print $1}' <<<"$STEPS"; }

list() {
  awk 'BEGIN {printf "%-15s%-15s%s\n", "STEP", "NEEDS", "MINUTES"} NF {printf "%-15s%-15s%s\n", $1, $2, $3}' <<<"$STEPS"
}

# run STEP...: runs the steps in this order, and ends with an exit code.
run() {
  local name
  for name in "$@"; do
    names | grep -qx -- "$name" || { echo "no step is called $name; tests/run.sh --list shows the steps" >&2; exit 2; }
  done
  mkdir -p "$CACHE" || exit 1
  for name in "$@"; do
    # shellcheck disable=SC2046 # The words of the command.
    step "$name" $(awk -v name="$name" '$1 == name {$1 = $2 = $3 = ""; print}' <<<"$STEPS")
  done
  summary
}

# step NAME COMMAND...: runs the command, and prints and records its outcome. The processor time shows whether the step
# computes or waits.
step() {
  local name=$1 start=$SECONDS TIMEFORMAT='=== processor time: %0U s, and %0S s of the kernel'
  shift
  printf '\n=== %s\n' "$name"
  if time "$@" </dev/null; then
    printf '=== %s: ok, %s s\n' "$name" $((SECONDS - start))
  else
    printf '=== %s: FAILED, %s s\n' "$name" $((SECONDS - start))
    FAILED+=("$name")
  fi
}

summary() {
  wait
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

# The library and the program must build with the oldest Rust that Cargo.toml names.
check_oldest_rust() {
  rustup toolchain list | grep -q "^$OLDEST_RUST-" ||
    rustup --quiet toolchain install "$OLDEST_RUST" --profile minimal --no-self-update || return
  CARGO_TARGET_DIR=$CACHE/oldest-rust CARGO_PROFILE_DEV_DEBUG=false cargo "+$OLDEST_RUST" check --quiet --locked
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

# The tests of the library and of what a client sees. The other tests start processes, or read the whole tree.
quick_tests() {
  cargo test --quiet --locked --lib --test switch --test config --test layers --test readme --test table
}

# A test checks the manual pages with mandoc, but only if mandoc is installed.
run_tests() {
  install mandoc || return
  # A test reads the commit in the log line of a start. Only a release build finds the commit itself. Many tests wait,
  # so more of them run at once than the machine has processors.
  CRISWITCH_COMMIT=0123456789ab RUST_TEST_THREADS=$(($(nproc) * 2)) \
    cargo test --quiet --locked --no-fail-fast
}

# Builds the programs of the real suite and the releases in the background. Debian's packages are installed first,
# because two programs cannot install packages at once.
build_partners() {
  tests/system/runtimes/run.sh --install && tests/system/package/run.sh --install || return
  beside tests/system/runtimes/run.sh --build >"$CACHE/partners.log" 2>&1 &
  PARTNERS=$!
  beside tests/system/package/run.sh --build >"$CACHE/releases.log" 2>&1 &
  RELEASES=$!
}

# beside COMMAND...: runs a command with the processor time that nothing else wants. Linux divides this time between
# sessions, so the command gets a session of its own, with the smallest part. To be called with `&`: the session has the
# id of the process, and an interrupted run ends it.
beside() {
  exec setsid chrt --idle 0 bash -c 'echo 19 >/proc/self/autogroup; exec "$@"' beside "$@"
}

# Ends the sessions of `beside` that still run.
end_background() {
  local session
  for session in $(jobs -p); do kill -- "-$session" 2>/dev/null; done
}

# wait_for PID: waits for builds in the background, if there are any. If one of them failed, the step that needs it
# repeats it and shows the error.
wait_for() {
  [ -z "$1" ] || wait "$1" || true
}

# Starts the fault simulation in the background, because the next steps often wait. Its clock is paused, so a busy machine
# does not matter to it.
begin_faults() {
  beside "${SIMULATE[@]}" >"$CACHE/faults.log" 2>&1 &
  FAULTS=$!
}

test_faults() {
  [ -n "${FAULTS:-}" ] || { "${SIMULATE[@]}"; return; }
  local code=0
  wait "$FAULTS" || code=$?
  cat "$CACHE/faults.log"
  return "$code"
}

# Uses the debug binary, which the tests before have built.
test_node() {
  wait_for "${PARTNERS:-}"
  cargo build --quiet --locked && CRISWITCH=${CARGO_TARGET_DIR:-$TOP/target}/debug/criswitch tests/system/node/run.sh
}

# Uses the binary and the bundle of the package if that step has built them.
test_runtimes() {
  wait_for "${PARTNERS:-}"
  CRISWITCH=${PACKAGED:-} CRISWITCH_BUNDLE=${PACKAGED_BUNDLE:-} tests/system/runtimes/run.sh
}

# Begins the tests for Windows in the background, and builds the demo, because the real runtimes often wait.
begin_windows() {
  beside bash -c 'tests/system/windows/run.sh || exit
    cargo build --quiet --locked -p criswitch-demo' >"$CACHE/windows.log" 2>&1 &
  WINDOWS=$!
}

# Tests that have failed in the background are repeated, because there they have little processor time.
test_windows() {
  local code=0
  if [ -n "${WINDOWS:-}" ]; then
    wait "$WINDOWS" || code=$?
    cat "$CACHE/windows.log"
    [ "$code" != 0 ] || return 0
  fi
  tests/system/windows/run.sh
}

test_package() {
  wait_for "${RELEASES:-}"
  tests/system/package/run.sh || return
  PACKAGED=$(echo "$CACHE"/package/one/criswitch-*-linux-amd64)
  # The comparison measures this program, too.
  export CRISWITCH_STATIC=$PACKAGED
  PACKAGED_BUNDLE=$CACHE/package/bundle
}

document() {
  RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --locked
}

check_scripts() {
  install shellcheck || return
  shellcheck -x .ci/run tests/run.sh tests/fuzz/run.sh tests/system/*/*.{sh,bash,bats} tests/system/runtimes/checks/* \
    package/*.sh package/scripts/* docs/pictures/draw.sh || return
  (cd tests/system/workflows && go build -mod=readonly -trimpath -o "$CACHE/actionlint" \
    github.com/rhysd/actionlint/cmd/actionlint) && "$CACHE/actionlint"
}

main "$@"
