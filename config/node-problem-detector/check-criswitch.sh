#!/bin/sh
# A plug-in for the custom plug-in monitor of node-problem-detector: asks criswitch for its status, and prints one line.
#
#   check-criswitch.sh backends    a backend does not answer, or the node is not served for another reason
#   check-criswitch.sh reload      criswitch has rejected the last reload
#   check-criswitch.sh nri         the socket of NRI belongs to a different process than its runtime
#
# Exit codes: 0 no problem, 1 a problem, 2 unknown, because criswitch does not answer. CRISWITCH is the command that runs
# criswitch on the node; docs/operations.md has the one for a container. The line has no times, because
# node-problem-detector writes an event for each new line.

# The words of the command are separate words.
# shellcheck disable=SC2086
status=$(${CRISWITCH:-criswitch} status -o json 2>/dev/null)
code=$?

# The error, if there is no status.
cause=$(printf '%s\n' "$status" | sed -n 's/.*"what": *"\(\([^"\\]\|\\.\)*\)".*/\1/p' | head -n 1)

# On a node that is not served, the exit code is 1. With a higher one there is no status.
if [ "$code" -gt 1 ]; then
  printf 'unknown, criswitch status exits with %s: %s\n' "$code" "${cause:-no answer}"
  exit 2
fi

# criswitch prints each field in a line, and each level with two more spaces.
printf '%s\n' "$status" | awk -v check="$1" -v cause="$cause" '
  function value(line) {
    sub(/^ *("[A-Za-z]*": )?"/, "", line)
    sub(/",?$/, "", line)
    gsub(/\\"/, "\"", line)
    return line
  }
  function add(text) { found = found (found == "" ? "" : "; ") text }
  /^  "/ { part = $1 }
  part == "\"criswitch\":" && $2 ~ /true/ { is_known = 1 }
  part == "\"health\":" && /^    "state": / { health = value($0) }
  part == "\"backends\":" && /^      "name": / { name = value($0) }
  part == "\"backends\":" && /^      "listProblem": / { lists = 1 }
  part == "\"backends\":" && /^      "state": / { state = value($0) }
  part == "\"backends\":" && /^    }/ {
    if (state == "down" || state == "unresponsive") problem = state
    else if (lists) problem = "without lists"
    if (problem != "" && check == "backends") add("backend " name " is " problem)
    problem = lists = state = ""
  }
  part == "\"reloads\":" && /^    "/ { is_last = $1 == "\"last\":" }
  is_last && /^      "problems": / { is_rejected = 1 }
  is_rejected && is_last && /^          "what": / && check == "reload" && found == "" { add("reload rejected: " value($0)) }
  /^  "lostNriSockets": \[/ { knows_nri = 1 }
  part == "\"lostNriSockets\":" && /^    "/ && check == "nri" { add(value($0)) }
  END {
    if (!is_known) {
      print "unknown, " (cause == "" ? "the socket does not belong to criswitch" : cause)
      exit 2
    }
    if (check == "nri" && !knows_nri) {
      print "unknown, the sockets of the node are not known; criswitch status must run as root"
      exit 2
    }
    if (check == "backends") {
      if (health ~ /^serving/) found = ""
      else if (found == "") found = health
    }
    if (found == "") {
      print "no problem"
      exit 0
    }
    print found
    exit 1
  }'
