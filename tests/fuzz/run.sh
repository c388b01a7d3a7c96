#!/usr/bin/env bash
# Runs the fuzz targets, two at a time.
#
# tests/fuzz/run.sh [SECONDS [TARGET...]] runs these targets, by default all, for this time, by default 600 seconds.
# tests/fuzz/run.sh build only builds them.
# tests/fuzz/run.sh add TARGET FILE... adds inputs to a target's corpus, such as the inputs that a run left in
# tests/fuzz/artifacts.
# tests/fuzz/run.sh minimise reduces every corpus to the fewest inputs that reach the same code as all inputs so far.
#
# The corpus of a target is tests/fuzz/corpus/TARGET.hex: one input per line, in hexadecimal, with sorted lines. A run
# unpacks the corpus to the cache; tests/corpora.rs reads it directly.
#
# libFuzzer's instrumentation is not part of stable Rust, so RUSTC_BOOTSTRAP enables it in the stable compiler. Build
# results and found inputs are kept in ${CRISWITCH_CACHE:-~/.cache/criswitch}; inputs that fail go to
# tests/fuzz/artifacts. The exit code is 0 only if no target has found a failure. SANITIZER=address builds with
# AddressSanitizer, which finds faults in the unsafe code of dependencies.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
CARGO_FUZZ_VERSION=0.13.2
SANITIZER=${SANITIZER:-none}
BUILT=$CACHE/fuzz-target-$SANITIZER
JOBS=2
# The largest length of an input, in bytes. Longer inputs find nothing more and are slower.
LONGEST_INPUT=1024
LONGEST_COMMITTED=256

# The targets that run. An empty list means all targets.
TARGETS=()

main() {
  case ${1:-600} in
    add) add_inputs "${@:2}" ;;
    build) build ;;
    minimise) build && each minimise_target ;;
    *)
      TARGETS=("${@:2}")
      build && each run_target "${1:-600}"
      ;;
  esac
}

# pack FILE...: prints one line for each file.
pack() {
  local file
  for file in "$@"; do
    od -An -v -tx1 "$file" | tr -d ' \n'
    echo
  done
}

# unpack TARGET: writes a file to the cache for each line of the corpus, and prints the folder.
unpack() {
  local folder=$CACHE/fuzz-committed/$1 number=0 input
  rm -rf "$folder"
  mkdir -p "$folder"
  sed 's/../\\x&/g' "$TOP/corpus/$1.hex" | while IFS= read -r input; do
    number=$((number + 1))
    printf '%b' "$input" >"$folder/$number"
  done
  echo "$folder"
}

# add_inputs TARGET FILE...: adds the files to the target's corpus.
add_inputs() {
  local corpus=$TOP/corpus/$1.hex
  pack "${@:2}" | LC_ALL=C sort -u -o "$corpus" - "$corpus"
}

# each FUNCTION [ARGUMENT]: runs the function with every target's name, JOBS at a time; fails if one run fails.
each() {
  local name running=0 failed=0
  [ ${#TARGETS[@]} -gt 0 ] || mapfile -t TARGETS < <(basename --multiple --suffix .rs "$TOP"/fuzz_targets/*.rs)
  for name in "${TARGETS[@]}"; do
    if [ "$running" -eq "$JOBS" ]; then
      wait -n || failed=1
      running=$((running - 1))
    fi
    "$1" "$name" "${@:2}" &
    running=$((running + 1))
  done
  for ((; running > 0; running--)); do
    wait -n || failed=1
  done
  return "$failed"
}

build() {
  local root=$CACHE/cargo-fuzz-$CARGO_FUZZ_VERSION
  [ -x "$root/bin/cargo-fuzz" ] ||
    CARGO_TARGET_DIR=$CACHE/cargo-fuzz-target cargo install --quiet --locked cargo-fuzz \
      --version "$CARGO_FUZZ_VERSION" --root "$root"
  rm -rf "$CACHE/cargo-fuzz-target"
  (cd "$TOP" && RUSTC_BOOTSTRAP=1 PATH=$root/bin:$PATH cargo fuzz build --fuzz-dir . \
    --target-dir "$BUILT" --sanitizer "$SANITIZER")
}

# run_target TARGET SECONDS: runs the target on the committed corpus and the inputs that earlier runs found.
run_target() {
  local found=$CACHE/fuzz-corpus/$1 log=$CACHE/fuzz-$1.log binary=("$BUILT"/*/release/"$1") committed
  committed=$(unpack "$1")
  mkdir -p "$found" "$TOP/artifacts/$1"
  if nice -n 19 "${binary[0]}" -max_total_time="$2" -max_len="$LONGEST_INPUT" \
    -artifact_prefix="$TOP/artifacts/$1/" "$found" "$committed" >"$log" 2>&1; then
    printf '%s: %s\n' "$1" "$(grep DONE "$log")"
  else
    printf '%s: FAILED\n' "$1"
    grep -A 4 -E 'panicked|ERROR|Test unit' "$log"
    return 1
  fi
}

minimise_target() {
  local found=$CACHE/fuzz-corpus/$1 corpus=$TOP/corpus/$1.hex binary=("$BUILT"/*/release/"$1") committed fewest
  committed=$(unpack "$1")
  mkdir -p "$found"
  fewest=$(mktemp -d)
  "${binary[0]}" -set_cover_merge=1 -use_counters=0 -max_len="$LONGEST_COMMITTED" "$fewest" "$committed" "$found" \
    2>/dev/null
  pack "$fewest"/* | LC_ALL=C sort >"$corpus"
  rm -rf "$fewest"
  printf '%s: %s inputs, %s\n' "$1" "$(wc -l <"$corpus")" "$(du -h --apparent-size "$corpus" | cut -f 1)"
}

main "$@"
