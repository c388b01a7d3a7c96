#!/usr/bin/env bash
# gate.sh BASE: counts the instructions of a call of the work tree and of the commit BASE, with the works `unary`,
# `list1000` and `merge2`. Exits with status 1 if the work tree takes over 3 % more with one of them.
#
#   benches/compare/gate.sh origin/main
#   benches/compare/gate.sh --judge compare.json    judges the file of an earlier run
#
# run.sh says what the machine needs. The daemon of BASE is built in the same way as the one of the work tree, and the
# benchmark is the one of the work tree. Seeds of hash maps make two counts of one daemon differ a little.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
MOST_PERCENT=3
WORKS=(unary list1000 merge2)

main() {
  case ${1:-} in
    "" | -*) echo "usage: gate.sh BASE | --judge FILE" >&2; exit 64 ;;
  esac
  local base tree
  base=$(git -C "$TOP" rev-parse --verify --quiet "$1^{commit}") || { echo "gate.sh: $1 is not a commit" >&2; exit 64; }
  tree=$(mktemp -d)
  # shellcheck disable=SC2064 # The path must be expanded now.
  trap "rm -rf '$tree'" EXIT
  git -C "$TOP" archive "$base" | tar -x -C "$tree"
  # A build of the benchmark also builds the daemon, with the features that the benchmark's own build has.
  # An earlier build must not stand for that of a commit without this program.
  rm -f "$CACHE/gate/release/criswitchd"
  (cd "$tree" && CARGO_TARGET_DIR=$CACHE/gate cargo bench --quiet --locked --bench compare --no-run)
  [ -x "$CACHE/gate/release/criswitchd" ] || { echo "gate.sh: $1 has no program criswitchd" >&2; exit 1; }
  CRISWITCH_STATIC=$CACHE/gate/release/criswitchd "$TOP/benches/compare/run.sh" --rounds 1 \
    --subject=criswitch --subject=static "${WORKS[@]/#/--work=}"
  judge "$CACHE/compare/compare.json"
}

# judge FILE: prints a line for each work of compare.json, and fails if one takes too many instructions. The daemon of BASE
# is the subject `static`.
judge() {
  jq --raw-output --argjson most "$MOST_PERCENT" --argjson works "${#WORKS[@]}" '
    [.measured | group_by(.work)[] | (map({(.subject): .instructions}) | add) + {work: .[0].work} |
      select(.static and .criswitch) | .percent = 100 * (.criswitch / .static - 1)] |
    (.[] | "\(.work): \(.static | round) -> \(.criswitch | round) instructions, \(.percent * 100 | round / 100) %"),
    if length != $works then "not all works were counted\n" | halt_error(1) else empty end,
    if any(.[]; .percent > $most) then "over \($most) % more instructions\n" | halt_error(1) else empty end' "$1"
}

if [ "${1:-}" = --judge ] && [ $# = 2 ]; then
  judge "$2"
else
  main "$@"
fi
