# SPDX-License-Identifier: Apache-2.0
"""Starts each engine in turn, measures it, stops it; round after round, so that a slow minute hits all.

Only one engine is in memory at a time: none can take the processor from another by waiting actively.
"""

import json
import pathlib
import random
import subprocess
import sys
import time

import figures

HERE = pathlib.Path(__file__).resolve().parent
WORKER = str(HERE / "worker.py")
CHECK_TOKENS = 16


class Installed:
    """An adapter with one kind of weights, and the Python and files to run it with."""

    def __init__(self, key: str, module: str, adapter, variant: str, python: str, model: str):
        self.key, self.module, self.adapter, self.variant = key, module, adapter, variant
        self.python, self.model = python, model


class Worker:
    """A running worker.py serve."""

    def __init__(self, engine: Installed, threads: int, options: dict, log):
        command = [engine.python, WORKER, "serve", engine.module, engine.model, engine.variant]
        command += [str(threads), json.dumps(options)]
        self.key = engine.key
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self.about = self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.key}: its process ended with {self.process.wait()}, see the log")
        return json.loads(line)

    def ask(self, **request) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Prompts:
    """Random prompts, never the same twice: no cache of prompt beginnings helps anybody."""

    def __init__(self, vocab: int, seed: int):
        self.random, self.vocab = random.Random(seed), vocab

    def take(self, count: int, length: int) -> list[list[int]]:
        # The first ids are special or single bytes in every vocabulary here.
        low = min(1000, self.vocab // 2)
        return [[self.random.randrange(low, self.vocab) for _ in range(length)] for _ in range(count)]


def measure(worker: Worker, arguments, prompts: Prompts) -> tuple[dict[str, float], list[int]]:
    """One engine's figures of one round, and the ids that it gives for a prompt that all get."""
    low = min(1000, prompts.vocab // 2)
    fixed = [low + (7 * number) % (prompts.vocab - low) for number in range(32)]
    worker.ask(prompts=prompts.take(1, 16), output=4)
    ids = worker.ask(prompts=[fixed], output=CHECK_TOKENS)["ids"][0]
    result = {"start": worker.about["start_s"]}
    for length in arguments.prefill:
        # The first at a length may set things up.
        worker.ask(prompts=prompts.take(1, length), output=1)
        result[f"prefill {length}"] = length / worker.ask(prompts=prompts.take(1, length), output=1)["seconds"]
    for streams in arguments.streams:
        requests = prompts.take(streams, arguments.prompt_tokens)
        result |= figures.of_load(streams, worker.ask(prompts=requests, output=arguments.output_tokens))
    result["rss"] = worker.ask(rss=True)["peak_rss_bytes"] / 2**20
    return result, ids


def run(engines: list[Installed], arguments, vocab: int, first_round: int, log, after_round) -> None:
    """after_round(figures per engine, ids per engine, versions, what failed how) is called with each round."""
    options = {"server": arguments.server, "client": arguments.client, "server_flags": arguments.server_flags}
    for number in range(first_round, first_round + arguments.rounds):
        measured, ids, versions, failed = {}, {}, {}, {}
        # Every engine has the same prompts; every round begins with another engine.
        turn = number % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            begin = time.monotonic()
            try:
                worker = Worker(engine, arguments.threads, options, log)
                try:
                    prompts = Prompts(vocab, seed=number)
                    measured[engine.key], ids[engine.key] = measure(worker, arguments, prompts)
                    versions[engine.key] = worker.about["version"]
                finally:
                    worker.stop()
            except (RuntimeError, BrokenPipeError) as error:
                failed[engine.key] = str(error)
                print(f"round {number + 1}: failed: {error}", file=sys.stderr, flush=True)
                continue
            figure = f"tokens/s {arguments.streams[-1]}"
            speed = measured[engine.key][figure]
            took = time.monotonic() - begin
            print(f"round {number + 1}: {engine.key}: {figure}: {speed:.1f}, took {took:.0f} s", file=sys.stderr)
        after_round(measured, ids, versions, failed)
