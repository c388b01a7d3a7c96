#!/usr/bin/env bash
# Builds criswitch for Windows, and runs it and its tests under Wine. Needs Debian 12, root and Rust. Installs missing
# tools. Keeps build results in ${CRISWITCH_CACHE:-~/.cache/criswitch}/windows, so that a second run is quick.
#
#   tests/system/windows/run.sh           all tests
#   tests/system/windows/run.sh --build   build the tests, and nothing else
#   tests/system/windows/run.sh --lints   run clippy, and nothing else
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
HERE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}/windows
TARGET=x86_64-pc-windows-gnu
WINE=/usr/lib/wine/wine64
# Tests that cannot pass under Wine 8. Tests that cannot pass on Windows are not compiled: `cfg(unix)` is beside each of
# them, with the reason.
SKIPPED=(
  # Wine does not replace a file that is open.
  an_existing_file_of_another_user_receives_nothing
  # A pipe takes more unread bytes than a socket, and these tests count the unread bytes.
  server::slow_clients
  a_client_that_leaves_replies_unread_gets_no_more_and_other_clients_get_theirs
  # Wine's pipes are slow: the time limits of these tests end before requests or replies exceed the limit of memory.
  rejected_lists_without_end_free_their_memory
  criswitchs_own_lists_have_memory_while_replies_to_clients_use_all_memory_for_replies
  requests_that_need_too_much_memory_are_rejected_and_small_requests_succeed
  # Under Wine a step of the paused clock takes as long as on a real one, and these tests take an hour.
  events_without_a_pause_disconnect_no_client_that_reads_and_delay_no_other_backend
  cached_lists_are_filtered_as_the_runtime_filters_them
  descriptors_asked_for_while_a_backend_is_down_change_no_label_keys
  a_backend_whose_lists_fail_after_a_connect_serves_its_pods_with_its_cached_lists
)
# Tests of hangs and of long waits: each takes one to twenty minutes under Wine, for the same reason. Only the nightly lane
# runs them.
SLOW=(
  backend::hostile_backends::a_streamed_list_without_end_is_ended
  fanout::stats::stats_omit_a_hung_backend_at_once_until_it_answers
  forward::kept_statuses::the_last_statuses_answer_while_a_backend_is_down_unresponsive_or_late
  fanout::silent_default::an_unresponsive_backend_does_not_delay_status_and_is_named_with_that_cause
  images::long_pulls::a_pull_into_every_store_is_not_sent_to_a_backend_that_hangs
  images::silent_images::a_removal_from_every_store_fails_while_a_backend_hangs
  images::image_removal::an_id_is_removed_while_a_backend_is_down_whose_cached_list_lacks_it
  images::stale_images::images_stay_listed_while_a_backend_is_dead_or_hangs
  images::image_removal::the_last_version_and_file_systems_of_a_hung_default_backend_answer_at_once
  session::states::a_backend_that_hangs_from_the_start_is_connecting_until_a_probe_fails
  dispatch::waits::a_call_that_changes_a_container_outlasts_a_short_stall_of_its_backend
  fanout::stale_lists::no_list_is_served_from_cache_for_longer_than_stale_lists
  session::states::a_backend_that_does_not_answer_a_probe_is_unresponsive_until_it_answers
  session::resumed_events::events_of_other_backends_arrive_while_one_hangs_and_its_own_arrive_afterwards
  session::returns::a_backend_whose_lists_hang_after_a_connect_serves_its_pods_with_its_cached_lists
  backend::hostile_backends::a_list_of_a_backend_has_memory_while_its_other_replies_use_all_of_theirs
  fanout::streams::messages_stay_whole_however_a_backend_splits_them
  session::states::an_idle_backend_that_hangs_is_found_by_a_periodic_probe
  session::unread_events::a_subscriber_that_does_not_read_is_cut_off_and_others_get_every_event
  session::lost_probes::an_unresponsive_backend_is_probed_again_after_a_while
  call::client_faults::the_only_backend_is_not_at_fault_for_a_client_that_it_rejects
  session::lost_probes::a_list_that_is_lost_during_the_greeting_is_asked_for_again
  fanout::failed_parts::an_item_that_clients_cannot_decode_reaches_no_client_and_its_backend_is_named
)

main() {
  mkdir -p "$HERE/prefix"
  if ! target_is_there; then
    echo "skipped: the toolchain's target $TARGET cannot be installed here"
    return
  fi
  cd "$TOP"
  export CARGO_TARGET_DIR=$HERE/target
  cargo clippy --quiet --locked --target "$TARGET" --lib --bins -- -D warnings
  [ "${1:-}" != --lints ] || return 0
  [ "$(id -u)" = 0 ] || { echo "run these tests as root"; exit 1; }
  install_what_is_missing
  export WINEPREFIX=$HERE/prefix WINEDEBUG=-all WINESERVER=/usr/lib/wine/wineserver64
  trap end_wine EXIT
  make_prefix
  export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$WINE
  [ "${1:-}" != --build ] || { cargo_test --no-run; return; }
  run_tests
  count_tests
  test_the_service
}

install_what_is_missing() {
  [ -x "$WINE" ] && command -v x86_64-w64-mingw32-gcc >/dev/null && return
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends gcc-mingw-w64-x86-64 wine64
  } >"$HERE/apt.log" 2>&1
}

target_is_there() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$TARGET/lib" ] || timeout 120 rustup --quiet target add "$TARGET" 2>/dev/null
}

# Makes Wine's directory. Wine 8 lacks a function that Rust's standard library needs for random numbers, so a library
# with this function is added.
make_prefix() {
  local library=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
  [ -f "$library" ] && return
  "$WINE" wineboot --init 2>/dev/null
  x86_64-w64-mingw32-gcc -shared -O2 -s -o "$library" "$TOP/tests/system/windows/bcryptprimitives.c" -ladvapi32
}

# Runs the tests, and each failed test up to two more times, one after the other. Wine is slow, so a test may wait in
# vain while other tests run. Wine replaces a file in two steps, so a test that reads a state file may find no file. If
# Wine's server has ended, no test is named, and all run again.
run_tests() {
  local log name failed arguments=()
  [ -n "${CRISWITCH_NIGHTLY:-}" ] || SKIPPED+=("${SLOW[@]}")
  for name in "${SKIPPED[@]}"; do arguments+=(--skip "$name"); done
  for round in 1 2 3; do
    log=$HERE/tests-$round.log
    cargo_test -- "${arguments[@]}" 2>&1 | tee "$log" && return
    mapfile -t failed < <(sed -n 's/^    \([a-z0-9_]*::[a-z0-9_:]*\)$/\1/p' "$log" | sort -u)
    if [ "${#failed[@]}" = 0 ]; then
      grep -q "wine client error" "$log" || return
      echo "once more: all, because Wine has ended"
      continue
    fi
    echo "once more: ${failed[*]}"
    arguments=("${failed[@]}" --exact --test-threads 1)
  done
  return 1
}

# A round that hangs ends, so that its output shows which tests ended.
cargo_test() {
  timeout 60m cargo test --quiet --locked --target "$TARGET" --no-fail-fast --lib --test switch --test merge --test table \
    --test interface --test corpora --test config --test metrics --test cli "$@"
}

# Prints how many tests ran, and how many tests are not for Windows, with the reasons. The tests `layers` and `readme`
# examine the sources and are not built for Windows, and neither are those of other programs, such as systemd.
count_tests() {
  local ran skipped
  ran=$(sum_of passed failed)
  skipped=$(sum_of "filtered out")
  echo "$ran tests ran, and $skipped were skipped because Wine cannot run them or is too slow."
  only_for_unix | awk -F '\t' '
    { of[$2] += $1; all += $1 }
    END {
      print all " further tests are for Unix only:"
      for (reason in of) printf "%5d  %s\n", of[reason], reason | "sort -k1,1nr -k2"
    }'
}

# sum_of WORD...: the sum of these counts in the results of the first round.
sum_of() {
  local word
  for word in "$@"; do
    sed -n "s/^test result: .* \([0-9]*\) $word;.*/\1/p" "$HERE/tests-1.log"
  done | awk '{ sum += $1 } END { print sum + 0 }'
}

# Prints the number of tests and the reason for each `cfg(unix)` that has a reason, before a test or a module.
only_for_unix() {
  local file
  find tests -name '*.rs' | sort | while read -r file; do
    awk '
      /^mod [a-z_]* \{/ { folder = $2 "/" }
      /^\}/ { folder = "" }
      sub(/^ *#\[cfg\(unix\)\] \/\/ /, "") { reason = $0; path = ""; next }
      reason == "" || /^ *\/\/\// { next }
      /^ *#\[path = / { split($0, parts, "\""); path = parts[2]; next }
      /^ *#\[(tokio::)?test/ { print 1 "\t" reason }
      /^ *(pub )?mod [a-z_]*;/ {
        sub(/;$/, "")
        print (path == "" ? folder $NF ".rs" : path) "\t" reason
      }
      { reason = "" }' "$file" | while IFS=$'\t' read -r tests reason; do
      [ "$tests" = 1 ] || tests=$(grep -cE '^ *#\[(tokio::)?test' "$(dirname "$file")/$tests" || true)
      printf '%s\t%s\n' "$tests" "$reason"
    done
  done
}

# Installs the service with the configuration of the zip file, starts it, reloads it, and removes it.
test_the_service() {
  local data=$WINEPREFIX/drive_c/ProgramData/criswitch
  # The Wine session that made the directory cannot start a new service. Without the option, Wine ends all services when
  # the last program has ended, and starts them again with the next one.
  end_wine
  "$WINESERVER" --persistent
  rm -rf "$data"
  mkdir -p "$data" "$WINEPREFIX/drive_c/criswitch"
  cp package/windows/criswitch.toml "$data"
  cp "$CARGO_TARGET_DIR/$TARGET"/debug/criswitch{,d}.exe "$WINEPREFIX/drive_c/criswitch"
  criswitch check | expect "listen *npipe:////./pipe/criswitch"
  criswitch manifests | expect "kubernetes.io/os: windows"
  # The service manager of Wine needs a moment after its first start.
  wait_for "the installation" service_is_installed
  wait_for "the start of the service" service_runs
  wait_for "the daemon" daemon_answers
  criswitch status | expect "runhcs-wcow-hypervisor"
  echo 'sandboxed = "npipe:////./pipe/containerd-next"' >>"$data/criswitch.toml"
  criswitch reload | expect "handler added: sandboxed"
  echo 'broken' >>"$data/criswitch.toml"
  criswitch reload 2>&1 | expect "criswitch.toml:1[0-9]:"
  net stop criswitch | expect "stopped successfully"
  expect "shutting down" <"$data/criswitch.log"
  sc delete criswitch
  if net start criswitch >/dev/null 2>&1; then
    echo "the service starts although it was uninstalled"
    return 1
  fi
}

criswitch() {
  "$WINE" 'C:\criswitch\criswitch.exe' "$@" || true
}

service_is_installed() {
  local said
  said=$(sc create criswitch start= auto binPath= 'C:\criswitch\criswitchd.exe --service') || grep -q "exists\|1073" <<<"$said"
}

service_runs() {
  net start criswitch 2>&1 | grep -q -e "started successfully" -e "already running"
}

net() {
  "$WINE" net "$@"
}

sc() {
  "$WINE" sc "$@" 2>&1
}

daemon_answers() {
  criswitch status 2>&1 | grep -q "criswitch 0.1.0, process"
}

# expect PATTERN: fails unless a line of standard input matches.
expect() {
  local text
  text=$(cat)
  grep -q -e "$1" <<<"$text" || {
    printf 'no line matches %s:\n%s\n' "$1" "$text"
    return 1
  }
}

# wait_for WHAT COMMAND...: waits until the command succeeds, 120 s at most.
wait_for() {
  local what=$1 end=$((SECONDS + 120))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "waited in vain for $what"; return 1; }
  done
}

# Ends the server process of Wine, which outlives the tests.
end_wine() {
  "$WINESERVER" --kill || true
}

main "$@"
