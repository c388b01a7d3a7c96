"""Draws panels of the dashboard from real data: Prometheus reads the daemon while a backend fails and returns, and
evaluates the panels' own queries."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import matplotlib
import node
from matplotlib import pyplot
from matplotlib.ticker import EngFormatter, StrMethodFormatter

PANELS = [
    "State",
    "Calls",
    "Failed calls",
    "Call duration, 99th percentile",
    "Proxy overhead",
    "Age of cached lists",
    "Lists from cache or without a backend",
    "Late stats",
]
COLUMNS = 2
UNITS = {"s": EngFormatter("s"), "reqps": StrMethodFormatter("{x:g} /s")}
# A panel shows at most this many series: the series with the highest values. It omits series that are always 0.
MOST_SERIES = 8
# The seconds between two values of a series.
STEP = 2
# Durations in seconds: until queries over an interval have data, then before, during and after the failure.
WARM_UP, BEFORE, DURING, AFTER = 15, 30, 40, 30
VARIABLES = {"$job": "criswitch", "$instance": ".*", "$__rate_interval": "10s"}
ADDRESS = "127.0.0.1:9090"
CONFIG = """\
scrape_configs:
- job_name: criswitch
  scrape_interval: 1s
  static_configs:
  - targets: ["127.0.0.1:9199"]
    labels: {instance: node}
"""


def record(prometheus):
    """Lets a backend fail and return; the first and the last moment of the time to show."""
    folder = pathlib.Path("/run/prometheus")
    folder.mkdir()
    (folder / "prometheus.yaml").write_text(CONFIG)
    flags = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}"]
    runtimes = node.start()
    subprocess.Popen([prometheus, *flags, f"--web.listen-address={ADDRESS}"], stderr=subprocess.DEVNULL)
    time.sleep(WARM_UP)
    begin = time.time()
    time.sleep(BEFORE)
    runtimes.send_signal(signal.SIGUSR1)
    time.sleep(DURING)
    runtimes.send_signal(signal.SIGUSR2)
    time.sleep(AFTER)
    return begin, time.time()


def series(target, begin, end):
    """Each series of a query, as its legend, times since `begin`, and values."""
    query = target["expr"]
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    parameters = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": STEP})
    with urllib.request.urlopen(f"http://{ADDRESS}/api/v1/query_range?{parameters}") as reply:
        result = json.load(reply)["data"]["result"]
    for one in result:
        legend = re.sub(r"\{\{(\w+)\}\}", lambda label: one["metric"].get(label[1], ""), target["legendFormat"])
        yield legend, [at - begin for at, _ in one["values"]], [float(value) for _, value in one["values"]]


def draw_state(axes, found):
    """A bar for each backend, green while it is ready."""
    for row, (_, times, values) in enumerate(found):
        colors = ["#4f8a5b" if value else "#b4534b" for value in values]
        axes.broken_barh([(at, STEP) for at in times], (row - 0.4, 0.8), facecolors=colors)
    axes.set_yticks(range(len(found)), [legend for legend, *_ in found])
    axes.invert_yaxis()


def draw_lines(axes, found, unit):
    highest = sorted((one for one in found if any(one[2])), key=lambda one: -max(one[2]))
    for legend, times, values in highest[:MOST_SERIES]:
        axes.plot(times, values, label=legend, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(UNITS[unit])
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)


def main(dashboard, prometheus, path):
    shown = json.loads(pathlib.Path(dashboard).read_text())["panels"]
    collapsed = [panel for row in shown for panel in row.get("panels", [])]
    panels = {panel["title"]: panel for panel in shown + collapsed}
    begin, end = record(prometheus)
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif", "font.size": 8})
    rows = -(-len(PANELS) // COLUMNS)
    figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(4.5 * COLUMNS, 2.8 * rows), layout="constrained")
    for axes, title in zip(grid.flat, PANELS):
        panel = panels[title]
        found = [one for target in panel["targets"] for one in series(target, begin, end)]
        if panel["type"] == "state-timeline":
            draw_state(axes, found)
        else:
            draw_lines(axes, found, panel["fieldConfig"]["defaults"]["unit"])
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlim(0, end - begin)
        axes.xaxis.set_major_formatter(UNITS["s"])
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


main(*sys.argv[1:])
