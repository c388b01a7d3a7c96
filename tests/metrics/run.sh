#!/usr/bin/env bash
# What is shipped for Prometheus, tried by Prometheus: its promtool checks the alerts, tries each, and checks the page of
# a switch under load; it reads that page itself and answers every query of the dashboard. On Debian with Rust; the
# package is unpacked into ${CRISWITCH_CACHE:-~/.cache/criswitch}, not installed.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
TOOLS=$CACHE/prometheus

if ! [ -x "$TOOLS/usr/bin/promtool" ]; then
  rm -rf "$TOOLS"
  mkdir -p "$TOOLS"
  cd "$TOOLS"
  apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }
  dpkg-deb -x prometheus_*.deb .
  rm prometheus_*.deb
fi
cd "$TOP"
PROMETHEUS_TOOLS=$TOOLS/usr/bin cargo test --quiet --locked --test metrics -- --ignored
