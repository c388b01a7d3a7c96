#!/usr/bin/env bash
# Draws the pictures of the documentation again: all of them, or `draw.sh PART...` of graphs, terminal and dashboard. Each
# .svg beside this script is a result. On Debian 12 as root with Rust; what it needs is kept in
# ${CRISWITCH_CACHE:-~/.cache/criswitch}. $CRISWITCH and $RUNTIMES name programs that are built already.
set -eu

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}
BUILT=${CARGO_TARGET_DIR:-$TOP/target}/suite
PYTHON=$CACHE/pictures-$(sha256sum <"$HERE/requirements.txt" | cut -c1-16)
# The fonts give boxes the width of their text.
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

# graphviz draws each graph.
graphs() {
  local source
  for source in *.dot; do
    dot -Tsvg "$source" -o "${source%.dot}.svg"
  done
}

# The output of `criswitch status --watch` while a backend fails.
terminal() {
  on_a_node terminal.py terminal.svg
}

# Panels of the dashboard, as Prometheus fills them while a backend fails.
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
    cargo build --quiet --profile suite --locked --bin criswitch --example runtimes
  export CRISWITCH=${CRISWITCH:-$BUILT/criswitch} RUNTIMES=${RUNTIMES:-$BUILT/examples/runtimes}
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
