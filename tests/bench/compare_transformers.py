#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normserve against transformers generate() on the same machine, model, threads and prompts.

What a user of the BHyT code has now is transformers' generate(), one batch at a time. Per model,
this runs `normserve-client load` with 1 and with 8 requests in flight, and generate() with batch 1
and 8 (eager attention, no padding), in alternation: round after round, so that a slow minute hits
both. Every request has its own random prompt, so that no prefix is ever reused. Prefill and all
overhead count on both sides; tokens are output tokens per second of wall time. The faster of
transformers' float32 and bfloat16 is what the ratio is taken against.

Prints a Markdown table and, with --json-out, everything measured.

usage (the Python of the script needs nothing; --python is one with torch and transformers 4.51.3):
  compare_transformers.py --server build/release/bin/normserve \\
      --client build/release/bin/normserve-client --python VENV/bin/python \\
      --model bhyt-kjv=models/demo/bhyt-kjv --model smollm2=SMOLLM2_FOLDER \\
      --bhyt-code BHYT_REPOSITORY --rounds 5
"""

import argparse
import json
import os
import pathlib
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = ("float32", "bfloat16")


class Worker:
    """A running transformers_worker.py."""

    def __init__(self, arguments: argparse.Namespace, folder: str, dtype: str):
        command = [arguments.python, str(HERE / "transformers_worker.py"), "--model", folder]
        command += ["--dtype", dtype, "--threads", str(arguments.threads)]
        if is_bhyt(folder):
            command += ["--bhyt-code", arguments.bhyt_code]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"transformers_worker.py ended with {self.process.wait()}")
        return json.loads(line)

    def tokens_per_second(self, batches: list[list[list[int]]], output_tokens: int) -> float:
        seconds = tokens = 0
        for prompts in batches:
            request = {"prompts": prompts, "output_tokens": output_tokens}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self._answer()
            seconds += answer["seconds"]
            tokens += answer["output_tokens"]
        return tokens / seconds

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


class Server:
    """A running normserve and the client that loads it."""

    def __init__(self, arguments: argparse.Namespace, folder: str, dtype: str):
        self.client = arguments.client
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="compare-"))
        ready = self.work / "ready.json"
        command = [arguments.server, "--model", f"m={folder}", "--dtype", dtype, "--device", "cpu"]
        command += ["--threads", str(arguments.threads), "--ready-file", str(ready)]
        command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
        command += shlex.split(arguments.server_flags)
        self.log = open(self.work / "server.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 300
        while not ready.exists() or not ready.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not come up, see {self.work}/server.log")
            time.sleep(0.05)
        self.target = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"

    def tokens_per_second(
        self, prompts: list[list[int]], output_tokens: int, concurrency: int
    ) -> float:
        file = self.work / "prompts.jsonl"
        lines = [json.dumps({"token_ids": p, "max_new_tokens": output_tokens}) for p in prompts]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [self.client, "load", "--target", self.target, "--prompts", str(file)]
        command += ["--concurrency", str(concurrency), "--requests", str(len(prompts))]
        command += ["--ignore-eos", "--omit-text", "--json", "--no-progress"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)} failed: {done.stderr}{done.stdout}")
        report = json.loads(done.stdout)
        expected = len(prompts) * output_tokens
        if report["requests"]["failed"] or report["tokens"]["output"] != expected:
            raise SystemExit(f"the load was not served whole: {done.stdout}")
        return report["output_tokens_per_s"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def config_of(folder: str) -> dict:
    return json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))


def is_bhyt(folder: str) -> bool:
    return str(config_of(folder).get("norm_type", "rms")).startswith("bhyt")


class Prompts:
    """Random prompts, never the same twice."""

    def __init__(self, vocab: int, length: int):
        self.random, self.vocab, self.length = random.Random(1), vocab, length

    def take(self, count: int) -> list[list[int]]:
        # The first ids are special tokens in every model here.
        return [
            [self.random.randrange(10, self.vocab) for _ in range(self.length)]
            for _ in range(count)
        ]


def measure(arguments: argparse.Namespace, folder: str) -> dict:
    """{"normserve float32 8": [tokens/s per round], "transformers bfloat16 1": ...}"""
    prompts = Prompts(config_of(folder)["vocab_size"], arguments.prompt_tokens)
    output = arguments.output_tokens
    workers = {dtype: Worker(arguments, folder, dtype) for dtype in DTYPES}
    servers = {dtype: Server(arguments, folder, dtype) for dtype in arguments.server_dtypes}
    results: dict[str, list[float]] = {}
    try:
        for worker in workers.values():
            worker.tokens_per_second([prompts.take(1)], 4)
        for server in servers.values():
            server.tokens_per_second(prompts.take(8), 4, 8)
        slower: dict[int, set[str]] = {n: set() for n in arguments.in_flight}
        for number in range(arguments.rounds):
            for n in arguments.in_flight:
                for dtype in DTYPES:
                    if dtype in slower[n]:
                        continue
                    batches = [prompts.take(n) for _ in range(arguments.batches)]
                    speed = workers[dtype].tokens_per_second(batches, output)
                    record(results, f"transformers {dtype} {n}", speed, number)
                for dtype, server in servers.items():
                    requests = prompts.take(n * arguments.batches)
                    speed = server.tokens_per_second(requests, output, n)
                    record(results, f"normserve {dtype} {n}", speed, number)
                # After the first round only a type that can still win is run again.
                best = max(statistics.median(results[f"transformers {d} {n}"]) for d in DTYPES)
                for dtype in DTYPES:
                    if statistics.median(results[f"transformers {dtype} {n}"]) < 0.7 * best:
                        slower[n].add(dtype)
    finally:
        for process in (*workers.values(), *servers.values()):
            process.stop()
    return {"speeds": results, "transformers_side": workers[DTYPES[0]].about}


def record(results: dict, key: str, speed: float, number: int) -> None:
    results.setdefault(key, []).append(speed)
    print(f"  round {number + 1}: {key}: {speed:.1f} tok/s", file=sys.stderr, flush=True)


def table(arguments: argparse.Namespace, measured: dict) -> tuple[list[str], list[dict]]:
    lines = ["| model | in flight | normserve | tok/s | transformers | tok/s | ratio |"]
    lines.append("|---|---|---|---|---|---|---|")
    rows = []
    for model, result in measured.items():
        speeds = result["speeds"]
        for n in arguments.in_flight:
            theirs = max(DTYPES, key=lambda d: statistics.median(speeds[f"transformers {d} {n}"]))
            base = statistics.median(speeds[f"transformers {theirs} {n}"])
            for dtype in arguments.server_dtypes:
                own = statistics.median(speeds[f"normserve {dtype} {n}"])
                cells = [model, str(n), dtype, spread(speeds[f"normserve {dtype} {n}"]), theirs]
                cells += [spread(speeds[f"transformers {theirs} {n}"]), f"{own / base:.2f}"]
                lines.append(f"| {' | '.join(cells)} |")
                row = {"model": model, "in_flight": n, "dtype": dtype, "tokens_per_s": own}
                row |= {"transformers_dtype": theirs, "transformers_tokens_per_s": base}
                rows.append(row | {"ratio": own / base})
    return lines, rows


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--server", required=True, help="the normserve binary")
    parser.add_argument("--client", required=True, help="the normserve-client binary")
    parser.add_argument("--python", default=sys.executable, help="one with torch and transformers")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--bhyt-code", default="", help="checkout of the BHyT repository")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2, help="batches per measurement")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--server-dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--server-flags", default="", help="more flags of the server, one string")
    parser.add_argument("--json-out", help="write everything measured to this file")
    arguments = parser.parse_args()
    for item in arguments.model:
        name, _, folder = item.partition("=")
        if not name or not folder:
            parser.error(f"--model {item}: NAME=DIR is needed")
        if is_bhyt(folder) and not arguments.bhyt_code:
            parser.error(f"--bhyt-code is needed for {name}: its norm is not in transformers")
    return arguments


def main() -> None:
    arguments = parse()
    # So that a terminated run stops its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measured = {}
    for item in arguments.model:
        name, _, folder = item.partition("=")
        print(name, file=sys.stderr, flush=True)
        measured[name] = measure(arguments, folder)
    lines, rows = table(arguments, measured)
    command = shlex.join(["compare_transformers.py", *sys.argv[1:]])
    load = os.getloadavg()[2]
    versions = next(iter(measured.values()))["transformers_side"]
    facts = (
        f"{processor()}, {arguments.threads} threads, prompt {arguments.prompt_tokens}, output "
        f"{arguments.output_tokens}, median (least to most) of {arguments.rounds} rounds, "
        f"transformers {versions['transformers']}, torch {versions['torch']}, "
        f"load average of the last 15 minutes {load:.1f}"
    )
    print("\n".join([*lines, "", facts, "", f"`{command}`"]))
    if arguments.json_out:
        everything = {"command": command, "facts": facts, "rows": rows, "measured": measured}
        pathlib.Path(arguments.json_out).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
