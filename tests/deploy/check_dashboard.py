#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every expression of the Grafana dashboard against a live Prometheus that scrapes a live server.

Starts build/release's server with the demo models and Debian's prometheus with deploy/prometheus/
prometheus.yml (only the target and the interval replaced), drives load on both models, and demands at
least one finite sample for every expression. Also: promtool accepts /metrics and the configuration.
Needs `prometheus` and `promtool` in PATH. Exits 1 naming every expression without data.
"""
import argparse
import contextlib
import json
import math
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/normserve.json"
MODELS = ("bhyt-kjv", "simplegpt-kjv")
SCRAPE_S = 1
LOAD_S = 12

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url):
    with _opener.open(url, timeout=10) as response:
        return response.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.2)
    sys.exit(f"check_dashboard: {what} did not happen within {seconds} s")


@contextlib.contextmanager
def running(command, log):
    with open(log, "wb") as file:
        process = subprocess.Popen([str(c) for c in command], stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def prometheus_config(metrics_port, to):
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    text, targets = re.subn(r'targets: \[[^\]]*\]', f'targets: ["127.0.0.1:{metrics_port}"]', text)
    text, intervals = re.subn(r"_interval: \w+", f"_interval: {SCRAPE_S}s", text)
    assert targets == 1 and intervals == 2, "deploy/prometheus/prometheus.yml has changed its shape"
    to.write_text(text)


def expressions():
    """(panel title, expression) of every target, variables replaced as Grafana would."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "10s").replace("$model", ".*")
            assert "$" not in expression, f"{panel['title']}: unknown variable in {expression}"
            yield panel["title"], expression


def has_data(prometheus, expression):
    query = urllib.parse.urlencode({"query": expression})
    answer = json.loads(get(f"{prometheus}/api/v1/query?{query}"))
    return any(math.isfinite(float(row["value"][1])) for row in answer["data"]["result"])


def drive_load(build, grpc_port):
    """Closed loops on both models at once; few distinct prompts, so that prefixes are hit."""
    runs = [
        subprocess.Popen(
            [build / "bin/normserve-client", "load", "--target", f"127.0.0.1:{grpc_port}", "--model", model,
             "--concurrency", "6", "--duration", str(LOAD_S), "--requests", "0", "--prompt-tokens", "80:160",
             "--output-tokens", "8:32", "--distinct", "4"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for model in MODELS
    ]
    for run in runs:
        _, errors = run.communicate(timeout=LOAD_S + 60)
        assert run.returncode == 0, f"load failed: {errors.decode()[-400:]}"


def check_with_promtool(arguments, stdin=None):
    result = subprocess.run(["promtool", *arguments], input=stdin, text=True, check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(f"promtool {' '.join(arguments[:2])}: exit {result.returncode}")
    return [] if result.returncode == 0 else [f"promtool {' '.join(arguments)}: {result.stdout}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        ready = folder / "ready.json"
        server = [build / "bin/normserve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                  "--device", "cpu", "--ready-file", ready]
        for model in MODELS:
            server += ["--model", f"{model}={ROOT}/models/demo/{model}"]
        stack.enter_context(running(server, folder / "server.log"))
        wait_for("SERVING", lambda: ready.exists() and ready.stat().st_size > 0)
        ports = json.loads(ready.read_text())
        metrics = f"http://127.0.0.1:{ports['metrics_port']}/metrics"

        config = folder / "prometheus.yml"
        prometheus_config(ports["metrics_port"], config)
        faults = check_with_promtool(["check", "config", str(config)])
        port = free_port()
        stack.enter_context(running(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"))
        prometheus = f"http://127.0.0.1:{port}"
        wait_for("Prometheus ready", lambda: "Ready" in get(f"{prometheus}/-/ready"))
        wait_for("the first scrape", lambda: has_data(prometheus, 'up{job="normserve"} == 1'))

        drive_load(build, ports["grpc_port"])
        time.sleep(2 * SCRAPE_S)
        faults += check_with_promtool(["check", "metrics"], get(metrics))
        checked = 0
        for title, expression in expressions():
            checked += 1
            if not has_data(prometheus, expression):
                faults.append(f"no data: {title}: {expression}")
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"dashboard: {checked} expressions, {len(faults)} faults")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
