#!/usr/bin/env bash
# Tests the shipped files for Prometheus and Grafana. promtool checks and tests the alerts, and checks the metrics page
# of a criswitch under load. Prometheus reads that page and evaluates every query of the dashboard. vmagent checks its
# example. Grafana's own types parse the dashboard. Runs as root on Debian with Rust. Unpacks Prometheus, vmagent and
# Grafana's types into ${CRISWITCH_CACHE:-~/.cache/criswitch} without installing them.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}

cd "$TOP"
TOOLS=$(tests/system/prometheus/unpack.sh)
# vmagent starts only with the variable that the example names.
NODE_NAME=node "$TOOLS/vmagent" -dryRun -promscrape.config=config/scrape/vmagent.yaml -remoteWrite.url=http://localhost \
  -loggerLevel=ERROR

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

PROMETHEUS_TOOLS=$TOOLS cargo test --quiet --locked --test metrics -- --ignored
