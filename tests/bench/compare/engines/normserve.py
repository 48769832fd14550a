# SPDX-License-Identifier: Apache-2.0
"""normserve as its users have it: the server binary, called through gRPC on the loopback interface.

The client is normserve-client, on the same cores as the server: its work counts, its start does not.
"""

import json
import pathlib
import shlex
import subprocess
import tempfile
import time

from engines import base

NAME = "normserve"
FOLDER = ""
MODULE = "json"  # nothing but Python itself
INSTALL = "build the server and its client: cmake --preset release"
# The server's flags.
VARIANTS = {
    "bf16": "--dtype bfloat16",
    "float32": "--dtype float32",
    "bf16-kv8": "--dtype bfloat16 --kv-cache-dtype int8",
    "int8": "--dtype bfloat16 --quantize int8",
    "int8-kv8": "--dtype bfloat16 --quantize int8 --kv-cache-dtype int8",
    "int4": "--dtype bfloat16 --quantize int4",
}


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
        self.target = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"

    def generate(self, prompts, output):
        prompts_file, calls_file = (pathlib.Path(self.folder.name) / name for name in ("prompts", "calls"))
        prompts_file.write_text("".join(json.dumps({"token_ids": prompt}) + "\n" for prompt in prompts))
        command = [self.options["client"], "load", "--target", self.target, "--model", "m", "--prompts", prompts_file]
        command += ["--requests", len(prompts), "--concurrency", len(prompts), "--max-new-tokens", output]
        command += ["--ignore-eos", "--temperature", 0, "--omit-text", "--no-progress", "--calls-out", calls_file]
        # The client's start is not the server's time: its clock begins with the run.
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(result.stderr[-2000:])
        calls = [json.loads(line) for line in calls_file.read_text().splitlines()]
        calls.sort(key=lambda call: call["request"])
        return [[ms / 1e3 for ms in call["token_ms"]] for call in calls], [call["token_ids"] for call in calls], 0.0

    def process(self):
        return self.server.pid

    def stop(self) -> None:
        if hasattr(self, "server"):
            self.server.terminate()
            self.server.wait(60)
            self.folder.cleanup()
