# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the real normserve binary, and reads its metrics. Only ever ends the process that it started."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import wire

BINARY = pathlib.Path(os.environ.get("NORMSERVE_BIN", wire.ROOT / "build/release/bin/normserve")).resolve()
CLIENT = pathlib.Path(os.environ.get("NORMSERVE_CLIENT_BIN", BINARY.parent / "normserve-client")).resolve()
DEMO = wire.ROOT / "models/demo"
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def run(*arguments, timeout=120, env=None):
    """The binary as a command that ends by itself."""
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})}, check=False)


def wait_until(condition, what, seconds=10.0):
    """Polls a condition whose moment nothing announces (a gauge); fails by name when time is up."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class Server:
    """with Server({"name": folder}, "--flag", value) as server: ...   One process on free ports.

    wait=False: the block begins as soon as the process listens, with its models still to be loaded.
    NORMSERVE_TEST_DEVICE=cuda-emulated in the environment runs the tests on the emulated CUDA kernels.
    """

    def __init__(self, models, *flags, env=None, start_timeout=120, wait=True):
        self.models = {name: pathlib.Path(folder) for name, folder in models.items()}
        self._folder = tempfile.TemporaryDirectory(prefix="normserve-e2e-")
        folder = pathlib.Path(self._folder.name)
        self.ready_file, self.log_file = folder / "ready.json", folder / "log"
        self.command = [str(BINARY), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                        "--device", os.environ.get("NORMSERVE_TEST_DEVICE", "cpu"), "--ready-file", str(self.ready_file), *map(str, flags)]
        for name, path in self.models.items():
            self.command += ["--model", f"{name}={path}"]
        self._env = {**os.environ, **(env or {})}
        self._start_timeout, self._wait = start_timeout, wait

    def __enter__(self):
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._env)
        try:
            self.wait_ready() if self._wait else self._wait_listening()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.address = f"127.0.0.1:{self.ready['grpc_port']}"
        self.channel = wire.open_channel(self.address)
        self.stub = wire.pb_grpc.GenerationServiceStub(self.channel)
        return self

    def wait_ready(self):
        self._wait_for(self.ready_file.exists)
        self.ready = json.loads(self.ready_file.read_text())

    def _wait_listening(self):
        self._wait_for(lambda: " event=listening " in self.log())
        line = next(line for line in self.log().splitlines() if " event=listening " in line)
        self.ready = {name: int(port) for name, port in re.findall(r"(grpc_port|metrics_port)=(\d+)", line)}

    def _wait_for(self, condition):
        end = time.monotonic() + self._start_timeout
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > end:
                raise AssertionError(f"the server did not come up in {self._start_timeout} s:\n{self.log()}")
            time.sleep(0.02)

    def __exit__(self, kind, *_):
        self.channel.close()
        code = self.process.poll()
        if code is None:
            code = self.stop()
        log = self.log()
        self._folder.cleanup()
        if kind is None and code not in (0, getattr(self, "expected_code", 0)):
            raise AssertionError(f"the server ended with {code}:\n{log}")

    def stop(self, sig=signal.SIGTERM, timeout=60):
        self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop on signal {sig}:\n{self.log()}") from None

    def log(self):
        return self.log_file.read_text(errors="replace")[-8000:]

    # --- calls
    def generate(self, model, prompt, n=None, timeout=120, **fields):
        return self.stub.Generate(wire.generate(model, prompt, n, **fields), timeout=timeout)

    def stream(self, model, prompt, n=None, timeout=120, **fields):
        return wire.Joined(self.stub.GenerateStream(wire.generate(model, prompt, n, **fields), timeout=timeout))

    def health(self, service=""):
        stub = health_pb2_grpc.HealthStub(self.channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status

    def serving(self, service=""):
        return self.health(service) == health_pb2.HealthCheckResponse.SERVING

    # --- metrics
    def metrics_text(self):
        url = f"http://127.0.0.1:{self.ready['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def metrics(self):
        return Metrics(self.metrics_text())

    def idle(self):
        """Waits until nothing runs or waits in any model and every block is free."""
        def quiet():
            now = self.metrics()
            return all(now.sum(name) == 0 for name in ("normserve_requests_running", "normserve_requests_waiting")) \
                and now.sum("normserve_kv_blocks", state="used") == 0 and now.in_flight() == 0
        wait_until(quiet, "the gauges at their idle values")

    def rss_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


class Metrics:
    """One scrape."""

    def __init__(self, text):
        self.samples = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                match = SAMPLE.match(line)
                assert match, f"not a sample: {line!r}"
                self.samples.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3])))

    def sum(self, name, **labels):
        """Over all series of this name with these labels; the name must exist."""
        values = [v for n, have, v in self.samples
                  if n == name and all(have.get(k) == want for k, want in labels.items())]
        assert values, f"no series {name} {labels}"
        return sum(values)

    def ended(self, reason=None, **labels):
        return self.sum("normserve_requests_ended_total", **labels, **({"reason": reason} if reason else {}))

    def in_flight(self, **labels):
        """Received and in no terminal reason yet."""
        return self.sum("normserve_requests_received_total", **labels) - self.ended(**labels)


def status_of(call, *arguments, **keywords):
    """(code, details) of a call that must fail."""
    try:
        answer = call(*arguments, **keywords)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError(f"the call succeeded: {answer}")
