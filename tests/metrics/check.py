#!/usr/bin/env python3
"""Reads the metrics of a live service with Prometheus's own parsers, in both forms.

    tests/metrics/check.py --binary target/release/admittance
"""

import argparse
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"
OPEN = "application/openmetrics-text;version=1.0.0"
OLDER = "text/plain;version=0.0.4"


def listed():
    """The names on the page."""
    return set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))


def fetch(url, accept):
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as response:
        kind = response.headers["Content-Type"]
        assert kind.startswith(accept.split(";")[0]), (accept, kind)
        return response.read().decode()


def families(text, parse):
    """The names that each parser finds, as the page has them."""
    found = {}
    for family in parse(text):
        ending = {"counter": "_total", "info": "_info"}.get(family.type, "")
        name = family.name if family.name.endswith(ending) else family.name + ending
        assert family.samples and family.documentation, name
        found[name] = family.type
    return found


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--binary", required=True)
    binary = arguments.parse_args().binary
    serve = [binary, "serve", "--port", "0", "--metrics-port", "0"]
    service = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    try:
        greeting = ""
        for line in service.stdout:
            greeting += line
            if line.startswith("try: "):
                break
        target = re.search(r"listening on (\S+)", greeting)[1]
        url = re.search(r"^metrics: (\S+)", greeting, re.MULTILINE)[1]
        for _ in range(7):
            subprocess.run([binary, "check", "api", "ann", "--target", target],
                           stdout=subprocess.DEVNULL, check=False)
        newer = families(fetch(url, OPEN), open_metrics)
        older = families(fetch(url, OLDER), prometheus)
        assert newer and set(newer) <= listed(), set(newer) - listed()
        assert newer["admittance_build_info"] == "info", newer
        assert newer["admittance_decision_duration_seconds"] == "histogram", newer
        # What the older text calls an info is a gauge there; all else is what it is.
        older["admittance_build_info"] = "info"
        # There is room only while somebody is behind, which may change from one look to the next.
        newer.pop("admittance_load_room", None)
        older.pop("admittance_load_room", None)
        assert older == newer, set(older.items()) ^ set(newer.items())
        health = urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=30)
        assert health.status == 200
    finally:
        service.terminate()
        service.wait()
    print(f"{len(newer)} families, in both forms")


if __name__ == "__main__":
    sys.exit(main())
