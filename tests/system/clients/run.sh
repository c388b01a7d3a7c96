#!/usr/bin/env bash
# Tests clients that are not written in Go or Rust: Python's and node's gRPC call criswitch with each form of the
# socket's address. Runs as root on Debian 12 with Rust. Keeps the clients in ${CRISWITCH_CACHE:-~/.cache/criswitch}.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
HERE=$TOP/tests/system/clients
CLIENTS=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}/clients-$(
  cat "$HERE"/{requirements.txt,package-lock.json} | sha256sum | cut -c1-16
)

prepare() {
  rm -rf "$CLIENTS"
  if ! { command -v npm >/dev/null && python3 -m venv "$CLIENTS" 2>/dev/null; }; then
    { apt-get update -qq && apt-get install -yqq --no-install-recommends nodejs npm python3-venv; } >/dev/null
    python3 -m venv --clear "$CLIENTS"
  fi
  "$CLIENTS/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$HERE/requirements.txt"
  cp "$HERE"/package*.json "$CLIENTS"
  (cd "$CLIENTS" && npm ci --silent --ignore-scripts)
  touch "$CLIENTS/.done"
}

[ -e "$CLIENTS/.done" ] || prepare
cd "$TOP"
CRISWITCH_CLIENTS=$CLIENTS cargo test --quiet --locked --test switch -- --ignored clients_in_python_and_javascript
