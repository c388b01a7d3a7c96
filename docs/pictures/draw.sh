#!/usr/bin/env bash
# draw.sh [PART...]: draws the pictures of the documentation again. PART is graphs, terminal or dashboard; without PART
# it draws all. Each result is an .svg file beside this script. Runs as root on Debian 12 with Rust. Keeps what it
# downloads in ${CRISWITCH_CACHE:-~/.cache/criswitch}. $CRISWITCH and $RUNTIMES may name programs that are built
# already.
set -eu

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
BUILT=${CARGO_TARGET_DIR:-$TOP/target}/suite
PYTHON=$CACHE/pictures-$(sha256sum <"$HERE/requirements.txt" | cut -c1-16)
# graphviz needs the fonts to make each box as wide as its text.
PACKAGES=(graphviz fonts-dejavu-core python3-venv iproute2)

main() {
  cd "$HERE"
  dpkg --status "${PACKAGES[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -yqq --no-install-recommends "${PACKAGES[@]}"; } >/dev/null
  [ $# -gt 0 ] || set -- graphs terminal dashboard
  for part in "$@"; do
    "$part"
  done
}

# Draws each graph with graphviz.
graphs() {
  local source
  for source in *.dot; do
    dot -Tsvg "$source" -o "${source%.dot}.svg"
  done
}

# Draws the output of `criswitch status --watch` while a backend fails.
terminal() {
  on_a_node terminal.py terminal.svg
}

# Draws panels of the dashboard, with data that Prometheus collects while a backend fails.
dashboard() {
  local programs
  programs=$("$TOP/tests/system/prometheus/unpack.sh")
  on_a_node dashboard.py "$TOP/config/grafana-dashboard.json" "$programs/prometheus" dashboard.svg
}

# on_a_node SCRIPT ARGUMENT...: runs a script that uses node.py.
on_a_node() {
  [ -e "$PYTHON/.done" ] || {
    python3 -m venv --clear "$PYTHON"
    "$PYTHON/bin/pip" install -q --disable-pip-version-check -r requirements.txt
    touch "$PYTHON/.done"
  }
  [ -n "${CRISWITCH:-}${RUNTIMES:-}" ] ||
    cargo build --quiet --profile suite --locked -p criswitch -p criswitch-demo
  export CRISWITCH=${CRISWITCH:-$BUILT/criswitch} RUNTIMES=${RUNTIMES:-$BUILT/runtimes}
  # All processes end with the script.
  PYTHONDONTWRITEBYTECODE=1 unshare --mount --net --pid --fork --kill-child --mount-proc \
    bash -euc "$NAMESPACE" "$PYTHON/bin/python" "$@"
}

# Gives the script an empty /run, an /etc that it may write, and the loopback address; then runs it.
# shellcheck disable=SC2016 # Another shell expands it.
NAMESPACE='
  mount -t tmpfs tmpfs /run
  mkdir /run/etc /run/work
  mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
  ip link set lo up
  exec "$0" "$@"
'

main "$@"
