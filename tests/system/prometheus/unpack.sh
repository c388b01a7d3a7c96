#!/usr/bin/env bash
# Unpacks Debian's Prometheus into ${CRISWITCH_CACHE:-~/.cache/criswitch}, without installing it, and prints the folder
# that has its programs.
set -eu

TOOLS=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}/prometheus

if ! [ -x "$TOOLS/usr/bin/promtool" ]; then
  rm -rf "$TOOLS"
  mkdir -p "$TOOLS"
  cd "$TOOLS"
  { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >&2
  dpkg-deb -x prometheus_*.deb .
  rm prometheus_*.deb
fi
echo "$TOOLS/usr/bin"
