"""Reads the dashboard of config/ with Grafana's own types (its Foundation SDK) and writes it again. Grafana does not
know a place that is lost or changed by that; the exit code is 1 then."""

import json
import sys

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel

# Fields that the Prometheus data source reads and that Grafana's types lack.
OF_THE_DATA_SOURCE = [".annotations.list[0].titleFormat"]


def differences(ours, theirs, place=""):
    """The places of `ours` that `theirs` lacks or has with another value."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from differences(value, theirs.get(key), f"{place}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (one, other) in enumerate(zip(ours, theirs)):
            yield from differences(one, other, f"{place}[{at}]")
    elif ours != theirs:
        yield place


def main(path):
    plugins.register_default_plugins()
    with open(path, encoding="utf-8") as file:
        ours = json.load(file)
    dashboard = Dashboard.from_json(json.loads(json.dumps(ours)))
    theirs = json.loads(JSONEncoder().encode(dashboard))
    unknown = [place for place in differences(ours, theirs) if place not in OF_THE_DATA_SOURCE]
    rows = [panel for panel in dashboard.panels if isinstance(panel, RowPanel)]
    panels = [panel for panel in dashboard.panels if panel not in rows] + [panel for row in rows for panel in row.panels]
    queries = sum(len(panel.targets or []) for panel in panels)
    for place in unknown:
        print(f"{path}: Grafana does not know {place}")
    print(f"dashboard: {len(panels)} panels with {queries} queries read by Grafana's types, {len(unknown)} places unknown")
    return 1 if unknown or not queries else 0


sys.exit(main(sys.argv[1]))
