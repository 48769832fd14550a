# SPDX-License-Identifier: Apache-2.0
"""normserve as its users have it: the server binary, called through gRPC on the loopback interface.

The client is Python's gRPC, a thread per request, on the same cores as the server: its work counts.
"""

import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time

from engines import base

NAME = "normserve"
FOLDER = ""
MODULE = "grpc_tools"
INSTALL = "grpcio grpcio-tools (and build the server: cmake --preset release)"
# The server's flags.
VARIANTS = {
    "bf16": "--dtype bfloat16",
    "float32": "--dtype float32",
    "int8": "--dtype bfloat16 --quantize int8",
    "int4": "--dtype bfloat16 --quantize int4",
}
ROOT = pathlib.Path(__file__).resolve().parents[4]


class Engine(base.Engine):
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="compare-normserve-")
        ready, log = pathlib.Path(self.folder.name) / "ready", pathlib.Path(self.folder.name) / "log"
        binary = self.options["server"]
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
        self.version = f"{version.stdout.strip().removeprefix('normserve ')}, gRPC"
        command = [binary, "--model", f"m={self.model}", "--device", "cpu", "--threads", str(self.threads)]
        command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--ready-file", str(ready)]
        command += shlex.split(VARIANTS[self.variant]) + shlex.split(self.options["server_flags"])
        with open(log, "wb") as output:
            self.server = subprocess.Popen(command, stdout=output, stderr=output)
        while not ready.exists() or not ready.read_text():
            if self.server.poll() is not None:
                raise RuntimeError(f"{shlex.join(command)}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.005)
        self.address = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"
        self.stub = None

    def connect(self) -> None:
        """Stubs and channel: the client's own start, which is not the server's."""
        sys.path.insert(0, str(ROOT / "tests" / "reference"))
        import grpc_stubs

        self.messages, self.stub = grpc_stubs.connect(self.address)

    def prepare(self, streams: int, tokens: int) -> None:
        if self.stub is None:
            self.connect()

    def generate(self, prompts, output):
        times, ids, failed = [[] for _ in prompts], [[] for _ in prompts], []
        requests = []
        for prompt in prompts:
            request = self.messages.GenerateRequest(model="m")
            request.token_ids.ids.extend(prompt)
            request.stop.max_new_tokens = output
            request.stop.ignore_eos = True
            request.sampling.temperature = 0
            request.output.omit_text = True
            requests.append(request)

        def follow(row: int) -> None:
            try:
                for chunk in self.stub.GenerateStream(requests[row]):
                    now = time.perf_counter()
                    times[row] += [now] * len(chunk.token_ids)
                    ids[row] += chunk.token_ids
            except Exception as error:  # handed to the caller's thread
                failed.append(error)

        threads = [threading.Thread(target=follow, args=(row,)) for row in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return times, ids

    def process(self):
        return self.server.pid

    def stop(self) -> None:
        if hasattr(self, "server"):
            self.server.terminate()
            self.server.wait(60)
            self.folder.cleanup()
