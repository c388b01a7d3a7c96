#!/usr/bin/env bash
# What is shipped for Prometheus, tried by Prometheus: its promtool checks the alerts, tries each, and checks the page of
# a switch under load; it reads that page itself and answers every query of the dashboard. And for Grafana: the dashboard
# is read by its own types. On Debian as root with Rust; Prometheus and Grafana's types are unpacked into
# ${CRISWITCH_CACHE:-~/.cache/criswitch}, not installed.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
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

GRAFANA=$CACHE/grafana-types-$(sha256sum <tests/system/prometheus/requirements.txt | cut -c1-16)
if ! [ -e "$GRAFANA/.done" ]; then
  rm -rf "$GRAFANA"
  python3 -m venv "$GRAFANA" 2>/dev/null || {
    { apt-get update -qq && apt-get install -yqq --no-install-recommends python3-venv; } >/dev/null
    python3 -m venv --clear "$GRAFANA"
  }
  "$GRAFANA/bin/pip" install -q --disable-pip-version-check --require-hashes -r tests/system/prometheus/requirements.txt
  touch "$GRAFANA/.done"
fi
"$GRAFANA/bin/python" tests/system/prometheus/dashboard.py config/grafana-dashboard.json

PROMETHEUS_TOOLS=$TOOLS/usr/bin cargo test --quiet --locked --test metrics -- --ignored
