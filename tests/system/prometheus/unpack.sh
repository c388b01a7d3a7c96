#!/usr/bin/env bash
# Unpacks Debian's Prometheus and vmagent into ${CRISWITCH_CACHE:-~/.cache/criswitch}, without installing them, and prints
# the folder that has their programs.
set -eu

TOOLS=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}/prometheus

for entry in prometheus:promtool victoria-metrics:vmagent; do
  package=${entry%:*}
  [ ! -x "$TOOLS/usr/bin/${entry#*:}" ] || continue
  mkdir -p "$TOOLS"
  cd "$TOOLS"
  { apt-get download -qq "$package" || { apt-get update -qq && apt-get download -qq "$package"; }; } >&2
  dpkg-deb -x "$package"_*.deb .
  rm "$package"_*.deb
done
echo "$TOOLS/usr/bin"
