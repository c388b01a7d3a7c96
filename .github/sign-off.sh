#!/usr/bin/env bash
# sign-off.sh COMMITS: fails if a commit has no line Signed-off-by, and prints it. Merges need none.
#
#   .github/sign-off.sh main..topic
set -euo pipefail
unsigned=$(git log --no-merges --invert-grep --grep='^Signed-off-by: ' --format='%h %s' "$1")
[ -z "$unsigned" ] || { echo "without a sign-off: $unsigned"; exit 1; }
