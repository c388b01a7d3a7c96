#!/usr/bin/env bash
# Runs the tests, in four lanes:
#
#   tests/run.sh            the quick lane: needs only cargo and a network; at most 5 minutes from nothing
#   tests/run.sh all        every step that each change must pass: 45 minutes with a warm cache, 65 from nothing
#   tests/run.sh nightly    long simulations, fuzzing, power cuts, Windows, second versions of partners: about 5.8 hours
#   tests/run.sh hosted     steps that workflows run beside a lane; some need servers that test machines cannot reach
#   tests/run.sh STEP...    these steps
#   tests/run.sh --list     the steps, with the lane, the needs and the minutes of each
#
# The times are for two quiet cores. Before the first step the script names everything that is missing, and exits with
# status 2. It installs missing tools. Build results are in ${CRISWITCH_CACHE:-~/.cache/criswitch}, outside the tree, so
# that a second run is quick. A step that fails does not stop the other steps. The exit status is 0 only if no step
# failed. However a run ends, its folder for temporary files is removed.
set -u

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
DEBUG_BINARY=${CARGO_TARGET_DIR:-$TOP/target}/debug/criswitch
CARGO_DENY_VERSION=0.20.2
CARGO_LLVM_COV_VERSION=0.9.1
# The oldest Rust that builds criswitch: rust-version in Cargo.toml.
OLDEST_RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$TOP/Cargo.toml")
FAILED=()
SIMULATE=(cargo run --quiet --locked --example chaos -- --count 300)
# Tests read the commit in the first log line, and only a release build finds the commit itself. All steps have the same
# value, so that no step builds again what another one has built.
export CRISWITCH_COMMIT=0123456789ab
# How many schedules the long simulation plays.
SCHEDULES=100000

# One step a line: name, lanes, what it needs beside cargo, minutes on two quiet cores when nothing is built yet, command.
# A step that installs Debian packages needs `root`. A new step or check states its lane and its minutes here.
STEPS="
toolchain     all,nightly go           0.1  check_toolchain
formatting    quick,all   -            0.1  cargo fmt --all --check
lints         all         network      2    check_lints
quick-tests   quick       network      4    quick_tests
oldest-rust   nightly     network      2    check_oldest_rust
dependencies  nightly,hosted network   2    check_dependencies
scripts       all         root,go      0.5  check_scripts
partners      all,nightly root,go      2    build_partners
tests         all         root,network 10   run_tests
documentation all         -            0.3  document
begin-faults  all         -            0.1  begin_faults
clients       all         root,network 0.5  tests/system/clients/run.sh
restarts      all,nightly go           2    tests/system/restart/run.sh
book          nightly     root,network 1.5  tests/system/book/run.sh
units         all         root,network 4    tests/system/systemd/run.sh
metrics       all         root,go      2    tests/system/prometheus/run.sh
faults        all         -            2    test_faults
package       all,nightly root,go      8    test_package
begin-demo    all         -            0.1  begin_demo
begin-node    all         root,go      0.1  begin_node
runtimes      all         root,go      13.6 test_runtimes
node          all         root,go      8    test_node
windows-lints all         network      1    after_builds tests/system/windows/run.sh --lints
windows       nightly     root,network 14   tests/system/windows/run.sh
demo          all         -            1.5  after_builds test_demo
comparison    nightly     root,go      5    benches/compare/run.sh --smoke
same-commit   nightly     root,go      15   compare_with_itself
simulation    nightly     -            10   simulate_long
fuzzing       nightly     network      58   tests/fuzz/run.sh
addresses     nightly     network      15   fuzz_addresses
node-cuts     nightly     root,go      90   test_node --cuts 20 --cycles 10 --faults all -f interrupted|installation
kills         nightly     root,go      28   test_kills
machine       nightly     root,go      50   test_machine
versions      nightly     root,go      40   test_versions
ansible       nightly     root,network 1.5  with_debug tests/system/ansible/run.sh
selinux       nightly     root,network 0.2  with_debug tests/system/selinux/run.sh
advisories    hosted      network      2    check_advisories
fuzz-targets  hosted      network      8    tests/fuzz/run.sh build
coverage      hosted      network      20   measure_coverage
instructions  hosted      root,go      15   compare_instructions
"

main() {
  cd "$TOP" || exit 1
  case ${1:-} in
    --help | -h) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
    --list) list ;;
    "") supervise "$(lane quick)" ;;
    all | hosted) supervise "$(lane "$1")" ;;
    nightly)
      # With this variable, the scripts of the steps build and check more.
      export CRISWITCH_NIGHTLY=1
      supervise "$(lane nightly)" ;;
    *) supervise "$*" ;;
  esac
}

# lane NAME: prints the names of the steps of a lane.
lane() { awk -v lane="$1" '("," $2 ",") ~ "," lane "," {print $1}' <<<"$STEPS"; }

# column NAME NUMBER: prints a column of a step.
column() { awk -v name="$1" -v number="$2" '$1 == name {print $number}' <<<"$STEPS"; }

list() {
  { echo "STEP LANE NEEDS MINUTES" && cat <<<"$STEPS"; } | awk 'NF {printf "%-15s%-16s%-15s%s\n", $1, $2, $3, $4}'
}

# supervise STEPS: checks that the steps can run, and runs them in this order, in a process group and with a folder for
# temporary files that end with this script. Steps that still run after CRISWITCH_TIME_LIMIT, for example 83m, have failed.
supervise() {
  local name code=0 steps=()
  read -r -d '' -a steps <<<"$1"
  for name in "${steps[@]}"; do
    [ -n "$(column "$name" 1)" ] || { echo "no step is called $name; tests/run.sh --list shows the steps" >&2; exit 2; }
  done
  check_needs "${steps[@]}" >&2 || exit 2
  mkdir -p "$CACHE" || exit 1
  # The name is short, because the path of a socket may have at most 107 bytes. Other users may use the folder, as they
  # may use the usual one.
  FOLDER=$(mktemp -d "${TMPDIR:-/tmp}/csXXXXXX") && chmod 1777 "$FOLDER" || exit 1
  export TMPDIR=$FOLDER
  GROUP='' TIMER=''
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  # With `-m`, the job gets a process group. tee ends after the steps, which write to it while they clean up.
  set -m
  { set +m; run "${steps[@]}" 2>&1 | (trap '' INT TERM HUP; exec tee "$FOLDER/output"); exit "${PIPESTATUS[0]}"; } &
  GROUP=$!
  sleep "${CRISWITCH_TIME_LIMIT:-infinity}" &
  TIMER=$!
  set +m
  wait -n "$GROUP" "$TIMER" || code=$?
  if ! kill "$TIMER" 2>/dev/null; then
    end_group
    echo "the run has not ended after $CRISWITCH_TIME_LIMIT" | tee -a "$FOLDER/output"
    code=1
  fi
  [ "$code" = 0 ] || failures <"$FOLDER/output"
  exit "$code"
}

# failures: prints the first lines about failed tests in the output of each failed step.
failures() {
  awk '/^=== [a-z-]+: FAILED|^the run has not ended/ {print ""; print; for (i = 0; i < n && i < 60; i++) print line[i]}
    /^=== [a-z-]+$/ {n = left = 0}
    /^not ok |^---- .* ----$|^error|panicked at/ {left = 8}
    left-- > 0 {line[n++] = substr($0, 1, 300)}'
}

# Ends all processes of the steps, and removes the folder for temporary files.
clean_up() {
  local code=$?
  trap '' INT TERM HUP
  [ -z "$TIMER" ] || kill "$TIMER" 2>/dev/null
  [ -z "$GROUP" ] || end_group
  rm -rf --one-file-system "$FOLDER"
  exit "$code"
}

# Ends all processes of the steps. A step may need time to clean up.
end_group() {
  local end=$((SECONDS + 120))
  kill -TERM -- "-$GROUP" 2>/dev/null
  while group_runs && [ "$SECONDS" -lt "$end" ]; do sleep 0.1; done
  kill -KILL -- "-$GROUP" 2>/dev/null
}

# Succeeds while the group has a process that is not a zombie. A zombie may stay for ever, if its parent does not wait
# for it.
group_runs() {
  cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' |
    awk -v group="$GROUP" '$3 == group && $1 != "Z" {runs = 1} END {exit !runs}'
}

# check_needs STEP...: prints everything that the steps need and this machine lacks, as one message.
check_needs() {
  local lacks=()
  command -v cargo >/dev/null || lacks+=("cargo, from https://rustup.rs")
  ! need go "$@" >/dev/null || command -v go >/dev/null || lacks+=("Go, from https://go.dev/dl, for the steps: $(need go "$@")")
  if need root "$@" >/dev/null; then
    [ "$(id -u)" = 0 ] || lacks+=("root, for the steps: $(need root "$@")")
    is_debian_12 || lacks+=("Debian 12, for the steps: $(need root "$@")")
  fi
  [ ${#lacks[@]} -gt 0 ] || return 0
  echo "These steps cannot run here, and no step has started. Missing:"
  printf '  - %s\n' "${lacks[@]}"
  echo "tests/Containerfile is a machine for all steps. tests/run.sh without an argument needs only cargo and a network."
  return 1
}

# need WHAT STEP...: prints the names of those steps that need WHAT; fails if no step needs it.
need() {
  local what=$1 name names=()
  shift
  for name in "$@"; do
    [[ ,$(column "$name" 3), != *,"$what",* ]] || names+=("$name")
  done
  [ ${#names[@]} -gt 0 ] && echo "${names[*]}"
}

is_debian_12() {
  (. /etc/os-release && [ "$ID ${VERSION_ID:-}" = "debian 12" ]) 2>/dev/null
}

# run STEP...: runs the steps in this order, and ends with an exit code.
run() {
  local name
  trap end_background EXIT
  trap 'exit 143' TERM
  for name in "$@"; do
    # shellcheck disable=SC2046 # The words of the command.
    step "$name" $(awk -v name="$name" '$1 == name {$1 = $2 = $3 = $4 = ""; print}' <<<"$STEPS")
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

check_lints() {
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings && count_idioms &&
    # The fuzz targets are not built here, but their lock file must be up to date.
    cargo metadata --quiet --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null
}

# Prints how often the sources have idioms that slow a reader down, per 1,000 lines without tests, and how long functions
# are. Fails if there are more of the first three idioms than the goals allow. \x27 is a quote.
count_idioms() {
  # shellcheck disable=SC2016 # A program of Perl.
  git ls-files 'src/*.rs' 'crates/*/src/*.rs' | grep -v '/tests\.rs$' | xargs perl -0777 -ne '
    s/#\[cfg\(test\)\]\nmod tests \{.*//s;
    $lines += tr/\n//;
    s{//[^\n]*|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\x27(?:\\.[^\x27]*|[^\x27\\])\x27}{}gs;
    $again += () = /\blet (?:mut )?(\w+)(?::[^=;]*)? = [^;]*;\s*let (?:mut )?\1(?::[^=;]*)? =\s*\1\b/g;
    $closures += () = /\blet (?:mut )?\w+ =\s*(?:move )?\|[^|\n]*\|/g;
    $lets += () = /\blet\b/g;
    $bools += () = /^\s*true\b[^\n]*=>/mg;
    push @lengths, 1 + $1 =~ tr/\n// while /(?=(\bfn\s+\w+[^;{]*(\{(?:[^{}]++|(?2))*+\})))\bfn/g;
    END {
      printf "per 1,000 of %d lines: names bound again %.1f (at most 0.5), closures with a name %.1f (at most 1.5), let %.1f (goal: 90, at most 92), match on a bool %.1f (goal: 0.2)\n",
        $lines, map { 1000 * $_ / $lines } $again, $closures, $lets, $bools;
      printf "99 of 100 functions have at most %d lines\n", (sort { $a <=> $b } @lengths)[@lengths * 0.99];
      exit 1 if $again > $lines * 0.0005 || $closures > $lines * 0.0015 || $lets > $lines * 0.092;
    }'
}

# The library and the program must build with the oldest Rust that Cargo.toml names.
check_oldest_rust() {
  rustup toolchain list | grep -q "^$OLDEST_RUST-" ||
    rustup --quiet toolchain install "$OLDEST_RUST" --profile minimal --no-self-update || return
  CARGO_TARGET_DIR=$CACHE/oldest-rust CARGO_PROFILE_DEV_DEBUG=false cargo "+$OLDEST_RUST" check --quiet --locked
}

# cargo_tool NAME VERSION ARGUMENT...: runs a program of crates.io, which it builds first if that is needed. The programs
# run for a few seconds only, so an optimized build would take longer than it saves.
cargo_tool() {
  local name=$1 root=$CACHE/$1-$2
  [ -x "$root/bin/$name" ] ||
    CARGO_TARGET_DIR=$CACHE/$name-target CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug \
      "$name" --version "$2" --root "$root" || return
  rm -rf "$CACHE/$name-target"
  "$root/bin/$name" "${@:3}"
}

check_dependencies() {
  cargo_tool cargo-deny "$CARGO_DENY_VERSION" --locked check bans licenses sources
}

# Compares the crates with the advisories of RustSec. Test machines cannot reach this database.
check_advisories() {
  cargo_tool cargo-deny "$CARGO_DENY_VERSION" --locked check advisories
}

# Prints the share of the lines that the tests run, as one number. Failed tests do not matter here, because the other
# lanes report them.
measure_coverage() {
  local report=$CACHE/coverage.json
  rustup component add llvm-tools || return
  CARGO_TARGET_DIR=$CACHE/coverage cargo_tool cargo-llvm-cov "$CARGO_LLVM_COV_VERSION" llvm-cov --locked \
    --ignore-run-fail --json --summary-only --output-path "$report" || return
  jq -r '.data[0].totals.lines | "coverage: \(.percent * 10 | round / 10) % of \(.count) lines"' "$report"
}

# Compares the instructions of calls with those at another commit, by default the previous one.
compare_instructions() {
  install jq && benches/compare/gate.sh "${CRISWITCH_BASE:-HEAD^}"
}

# Checks that the gate runs here, and counts about the same instructions for two builds of one commit.
compare_with_itself() {
  install jq && benches/compare/gate.sh HEAD
}

# install PROGRAM: installs the Debian package with the program's name, unless the program exists.
install() {
  [ -x "/usr/bin/$1" ] || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$1"
  } >"$CACHE/apt-$1.log" 2>&1
}

# The tests of the library and of what a client sees. The other tests start processes, or read the whole tree.
quick_tests() {
  many_tests --lib --test switch --test config --test interface --test layers --test readme --test table
}

# many_tests ARGUMENT...: runs `cargo test`. Many tests wait, so more of them run at once than the machine has processors.
many_tests() {
  RUST_TEST_THREADS=$(($(nproc) * 2)) cargo test --quiet --locked "$@"
}

# A test checks the manual pages with mandoc, but only if mandoc is installed.
run_tests() {
  install mandoc || return
  local code=0
  many_tests --no-fail-fast || code=$?
  many_tests -p criswitch-proto || code=$?
  return "$code"
}

# Builds the programs of the real suite in the background, and then the releases, which are needed later. Debian's
# packages are installed first, because two programs cannot install packages at once.
build_partners() {
  tests/system/runtimes/run.sh --install && tests/system/package/run.sh --install || return
  beside tests/system/runtimes/run.sh --build >"$CACHE/partners.log" 2>&1 &
  PARTNERS=$!
  after "$PARTNERS" tests/system/package/run.sh --build >"$CACHE/releases.log" 2>&1 &
  RELEASES=$!
}

# beside COMMAND...: runs a command with the processor time that no other process needs. Linux divides this time between
# sessions, so the command gets a session of its own, with the smallest part. Call this function with `&`: the id of the
# session is the id of the process, so that an interrupted run can end the session.
beside() {
  exec setsid chrt --idle 0 bash -c 'echo 19 >/proc/self/autogroup; exec "$@"' beside "$@"
}

# after PID COMMAND...: waits until the process PID has ended, and then runs the command as `beside` does. With an empty
# PID it does not wait.
after() {
  local pid=$1
  shift
  # shellcheck disable=SC2016 # The inner shell expands these.
  beside bash -c '[ -z "$0" ] || tail --pid="$0" -f /dev/null; exec "$@"' "$pid" "$@"
}

# Ends the sessions of `beside` that still run. bash's own kill would end the group of this script instead, because it
# does not know that a job has made a session.
end_background() {
  local session
  for session in $(jobs -p); do env kill -TERM -- "-$session" 2>/dev/null; done
  wait
}

# wait_for PID: waits for a session of `beside`, if there is one, and returns its exit code. If a build failed, the step
# that needs it repeats it and shows the error. While a step waits, the session gets an ordinary part of the processor
# time, because a busy machine may leave no time to `beside`.
wait_for() {
  local process
  [ -n "$1" ] || return 0
  while kill -0 "$1" 2>/dev/null; do
    for process in $(session "$1"); do
      { chrt --other --all-tasks --pid 0 "$process" && echo 0 >"/proc/$process/autogroup"; } 2>/dev/null
    done
    sleep 1
  done
  wait "$1"
}

# session ID: prints the processes of a session.
session() {
  cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^\([0-9]*\) .*) /\1 /' | awk -v id="$1" '$5 == id {print $1}'
}

# Starts the fault simulation in the background, because the next steps often wait. Its clock is paused, so a busy
# machine does not affect it.
begin_faults() {
  after "${PARTNERS:-}" "${SIMULATE[@]}" >"$CACHE/faults.log" 2>&1 &
  FAULTS=$!
}

test_faults() {
  if [ -n "${FAULTS:-}" ]; then finish "$FAULTS" faults; else "${SIMULATE[@]}"; fi
}

# finish PID NAME: waits for a step in the background, and prints its output.
finish() {
  local code=0
  wait_for "$1" || code=$?
  cat "$CACHE/$2.log"
  return "$code"
}

# Starts the step `node` in the background, because this step and the step `runtimes` often wait.
begin_node() {
  build_for_nodes || return
  CRISWITCH=$DEBUG_BINARY setsid tests/system/node/run.sh >"$CACHE/node.log" 2>&1 &
  NODE=$!
}

# test_node [ARGUMENT...]: waits for the step if begin_node has started it.
test_node() {
  if [ -n "${NODE:-}" ]; then
    finish "$NODE" node
  else
    build_for_nodes && CRISWITCH=$DEBUG_BINARY tests/system/node/run.sh "$@"
  fi
}

# The checks of nodes use the programs of the tests, which inject faults.
build_for_nodes() {
  wait_for "${PARTNERS:-}"
  cargo test --quiet --locked --no-run --test cli
}

# with_debug COMMAND...: runs a command that uses the debug binary.
with_debug() {
  cargo build --quiet --locked && CRISWITCH=$DEBUG_BINARY "$@"
}

# Uses the binary and the bundle of the package if the step `package` has built them.
test_runtimes() {
  wait_for "${PARTNERS:-}"
  CRISWITCH=${PACKAGED:-} CRISWITCH_BUNDLE=${PACKAGED_BUNDLE:-} tests/system/runtimes/run.sh
}

# Begins the builds of the last steps in the background, because the real runtimes often wait.
begin_demo() {
  # The real suite needs this client, and would wait for the builds.
  cargo build --quiet --locked --example load || return
  beside bash -c 'cargo build --quiet --locked -p criswitch-demo && tests/system/windows/run.sh --lints' \
    >"$CACHE/demo.log" 2>&1 &
  DEMO=$!
}

# Runs the demo with README's command: once with all checks, and then until Ctrl-C, with the status that the demo offers.
# No file may be left.
test_demo() {
  local demo folder shown pid code=0
  read -ra demo <<<"$(sed -n 's/^    \(cargo run -p [a-z-]*\) .*/\1/p' README.md)"
  "${demo[@]}" -- --once || return
  folder=$(mktemp -d) shown=$(mktemp)
  TMPDIR=$folder "${demo[@]}" >"$shown" &
  pid=$!
  until grep -q 'Ctrl-C ends the demo' "$shown"; do kill -0 "$pid" && sleep 0.1 || return; done
  "$(sed -n 's/^  \(.*\) status .D$/\1/p' "$shown")" status "$(sed -n 's/^  D=//p' "$shown")" | grep 'serving' || code=1
  kill -INT "$pid" && wait "$pid" && rmdir "$folder" && return "$code"
}

# after_builds COMMAND...: runs a command once the builds of `begin_demo` have ended.
after_builds() {
  wait_for "${DEMO:-}"
  "$@"
}

test_package() {
  wait_for "${PARTNERS:-}"
  wait_for "${RELEASES:-}"
  tests/system/package/run.sh || return
  # The programs of the package's tests have the names of an installation.
  PACKAGED=$CACHE/package/root/criswitch
  # The comparison measures this daemon, too.
  export CRISWITCH_STATIC=${PACKAGED}d
  PACKAGED_BUNDLE=$CACHE/package/bundle
}

# Plays schedules that no run has played before. CRISWITCH_SEED repeats a run.
simulate_long() {
  local seed=${CRISWITCH_SEED:-$(date +%s)000000}
  echo "CRISWITCH_SEED=$seed"
  # The tests of the simulation show that it notices each kind of mistake.
  cargo test --quiet --profile suite --locked --example chaos || return
  cargo run --quiet --profile suite --locked --example chaos -- --count "$SCHEDULES" --from "$seed" --threads "$(nproc)"
}

# Fuzzes with AddressSanitizer, which finds faults in the unsafe code of dependencies.
fuzz_addresses() {
  SANITIZER=address tests/fuzz/run.sh 120
}

# Kills criswitch 500 times while pods are created on real runtimes, and stops a containerd for minutes under a kubelet.
test_kills() {
  wait_for "${PARTNERS:-}"
  CRISWITCH=${PACKAGED:-} CRISWITCH_KILLS=500 CRISWITCH_HANG_S=200 CRISWITCH_LIMIT=2h \
    tests/system/runtimes/run.sh -f 'killed|hangs: the kubelet'
}

# Boots the package and a node in QEMU, and cuts their power. CRISWITCH_SEED repeats the moments.
test_machine() {
  wait_for "${PARTNERS:-}"
  tests/system/machine/run.sh
}

# The checks that use second versions of partners.
test_versions() {
  wait_for "${PARTNERS:-}"
  export CRISWITCH_NIGHTLY=1
  CRISWITCH=${PACKAGED:-} tests/system/runtimes/run.sh \
    -f 'chart|critest|measure --all|older containerd|problem-detector' &&
    test_node -f 'kubeadm|Ansible|to compare with'
}

document() {
  RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --locked
}

check_scripts() {
  # A tag of an action can move, so each action is pinned by its commit. The comment has the version, for Dependabot.
  ! grep -Hn 'uses: ' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40} # v[0-9.]+$' || return
  install shellcheck && install jq || return
  shellcheck -x .ci/run .github/*.sh tests/run.sh tests/fuzz/run.sh tests/system/*/*.{sh,bash,bats} tests/system/runtimes/checks/* \
    package/*.sh package/scripts/* docs/pictures/draw.sh benches/compare/*.sh deploy/kubectl/kubectl-criswitch \
    config/node-problem-detector/check-criswitch.sh || return
  (cd tests/system/workflows && go build -mod=readonly -trimpath -o "$CACHE/actionlint" \
    github.com/rhysd/actionlint/cmd/actionlint) && "$CACHE/actionlint" && check_gate && check_sign_off
}

# Checks that the gate of instructions accepts almost 3 % more, and not more than 3 %.
check_gate() {
  accepted() {
    jq -n --argjson count "$1" '{measured: [("unary", "list1000", "merge2") as $work | {work: $work} +
      ({subject: "static", instructions: 1000}, {subject: "criswitch", instructions: $count})]}' >"$TMPDIR/compare.json"
    benches/compare/gate.sh --judge "$TMPDIR/compare.json" >/dev/null 2>&1
  }
  accepted 1029 && ! accepted 1031
}

# Checks that the workflow rejects a commit without a sign-off.
check_sign_off() (
  # Git's variables, such as those of a hook, would name the repository of this script.
  # shellcheck disable=SC2046 # The names are words.
  unset $(git rev-parse --local-env-vars)
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
  repository=$TMPDIR/sign-off
  commit() {
    git -C "$repository" -c user.name=tests -c user.email=tests@example.com commit -q --allow-empty "$@"
  }
  signed() {
    (cd "$repository" && "$TOP/.github/sign-off.sh" first..HEAD >/dev/null)
  }
  git init -q "$repository" && commit -m first && git -C "$repository" tag first &&
    commit --signoff -m second && signed && commit -m third && ! signed
)

main "$@"
