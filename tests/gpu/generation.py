# SPDX-License-Identifier: Apache-2.0
"""Rows of the check that time generation: engines of several checkpoints, one process each, that answer in turns."""
import collections
import dataclasses
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile

import random_checkpoint
from intervals import ratio, summary
from programs import ROOT, Context, NotRun, has_module, last_words, python

NOMINAL_BYTES_PER_SECOND = 4.8e12  # of an H200, by its data sheet
PAPER_TOKENS_PER_SECOND = 1199.9   # BHyT, figure 1
PROMPT, OUTPUT = 128, 256
DRY_SIZES = {"prompt": 3, "output": 4, "batches": (1, 2)}
BLOCK_TOKENS = 32
WARM_UP_ROUNDS = 1
# What is worth comparing: a name, and what is divided by what.
RATIOS = {"bhyt/rms": ("bhyt", "rms"), "bhyt/bhytstar": ("bhyt", "bhytstar"), "bhyt/peri": ("bhyt", "peri"),
          "simplegpt/prenorm": ("simplegpt", "prenorm")}


@dataclasses.dataclass(frozen=True)
class Load:
    """What a row measures. With `flags`, of engine_bench, a kind's name in the report carries them."""
    kinds: tuple[str, ...]
    batches: tuple[int, ...] = (1, 64)
    shape: str = "llama-1b"
    flags: tuple[str, ...] = ()
    rounds: int = 11
    transformers: tuple[str, ...] = ()  # kinds that PyTorch generates with as well, at batch 1


class Worker:
    """A program that answers a line with a JSON object."""

    def __init__(self, context: Context, name: str, command: list):
        self.context, self.log = context, context.logs / f"{name}.txt"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, bufsize=0,
                                            stdout=subprocess.PIPE, stderr=log, env=context.environment())
        self.unread = b""

    def answer(self) -> dict:
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, self.context.budget.left()))
            if not ready:
                raise TimeoutError
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError(f"{self.log.stem} ended: {last_words(self.log)}")
            self.unread += piece
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def ask(self, line: str) -> dict:
        self.process.stdin.write(f"{line}\n".encode())
        return self.answer()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Engine(Worker):
    def __init__(self, context: Context, folder: pathlib.Path, load: Load):
        most = max(load.batches)
        blocks = most * -(-(PROMPT + OUTPUT) // BLOCK_TOKENS) + BLOCK_TOKENS
        command = [context.program("engine_bench"), folder, "--device", context.device, "--json", "--blocks", blocks]
        super().__init__(context, f"engine-{folder.name}", [*command, "--max-running", max(most, 64), *load.flags])

    def tokens_per_second(self, batch: int) -> float:
        prompt, output = (DRY_SIZES["prompt"], DRY_SIZES["output"]) if self.context.dry else (PROMPT, OUTPUT)
        return self.ask(f"{batch} {prompt} {output}")["tokens_per_second"]


class Transformers(Worker):
    """`generate()` of the transformers package: what the checkpoint's authors would measure."""

    def __init__(self, context: Context, folder: pathlib.Path):
        script = ROOT / "tests" / "bench" / "transformers_worker.py"
        command = [python(), script, "--model", folder, "--dtype", "bfloat16", "--threads", "8", "--device", "cuda"]
        super().__init__(context, f"transformers-{folder.name}", command)

    def tokens_per_second(self, batch: int) -> float:
        prompts = [[7 + 31 * i + s for i in range(PROMPT)] for s in range(batch)]
        answer = self.ask(json.dumps({"prompts": prompts, "output_tokens": OUTPUT}))
        return answer["output_tokens"] / answer["seconds"]


def folder_for(size: int) -> pathlib.Path:
    """In memory where that is large enough."""
    shared = pathlib.Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > size + (4 << 30):
        return shared
    return pathlib.Path(tempfile.gettempdir())


def start(context: Context, load: Load, work: pathlib.Path, workers: dict[str, Worker]) -> None:
    """Engines load while the next checkpoint is written."""
    pools = random_checkpoint.Pools()
    for kind in load.kinds:
        random_checkpoint.write(work / kind, load.shape, kind, pools)
        workers[kind] = Engine(context, work / kind, load)
    if has_module("transformers") and not context.dry:
        for kind in load.transformers:
            workers[f"{kind}, transformers"] = Transformers(context, work / kind)


def answers_of(workers: dict[str, Worker], problems: list[str]) -> dict[str, dict]:
    """What each worker says first, when its model is there. One that ends instead is a problem, and costs no other."""
    answers = {}
    for name in list(workers):
        try:
            answers[name] = workers[name].answer()
        except RuntimeError as failure:
            problems.append(str(failure))
            workers.pop(name).stop()
    return answers


def rounds_of(context: Context, load: Load, workers: dict[str, Worker]) -> dict[tuple[str, int], list[float]]:
    """Tokens per second of every worker and batch, round by round; the first one warms up, which is when shapes
    are recorded. Ends early with its time; a round that is not whole does not count."""
    rates = collections.defaultdict(list)
    names = list(workers)
    for number in range(WARM_UP_ROUNDS + load.rounds):
        begun = context.budget.left()
        turn = names[number % len(names):] + names[:number % len(names)]
        try:
            row = {(name, batch): workers[name].tokens_per_second(batch) for batch in load.batches for name in turn
                   if batch == 1 or isinstance(workers[name], Engine)}
        except TimeoutError:
            break
        if number >= WARM_UP_ROUNDS:
            for key, rate in row.items():
                rates[key].append(rate)
        if context.budget.left() < 1.3 * (begun - context.budget.left()):
            break
    if not rates:
        raise TimeoutError
    return rates


def figures_of(context: Context, load: Load, workers: dict[str, Worker], described: dict[str, dict],
               rates: dict[tuple[str, int], list[float]]) -> dict:
    figures, ratios = [], []
    for name, batch in sorted(rates, key=lambda key: (key[1], list(workers).index(key[0]))):
        values = rates[name, batch]
        figure = {"model": name, "shape": load.shape, "flags": " ".join(load.flags), "batch": batch,
                  "tokens_per_second": summary(values)}
        if name in described:
            figure |= limits(context, load, name, batch, described[name], figure["tokens_per_second"]["median"])
        figures.append(figure)
    for label, (kind, other) in RATIOS.items():
        for batch in load.batches:
            if rates.get((kind, batch)) and rates.get((other, batch)):
                ratios.append({"ratio": label, "batch": batch, **ratio(rates[kind, batch], rates[other, batch])})
    for figure in figures:
        limit = figure.get("measured_limit") or figure.get("nominal_limit")
        if figure["model"] == "rms" and limit:
            values = [rate / limit for rate in rates["rms", figure["batch"]]]
            ratios.append({"ratio": "rms/limit", "batch": figure["batch"], **summary(values)})
    return {"figures": figures, "ratios": ratios}


def limits(context: Context, load: Load, kind: str, batch: int, description: dict, rate: float) -> dict:
    """What memory would allow if a step read every weight once and did nothing else: by the copy's figure, and by
    the data sheet's."""
    read = description["weight_bytes"] * random_checkpoint.share_read_per_step(load.shape, kind)
    out = {"weight_bytes_per_step": round(read), "nominal_limit": batch * NOMINAL_BYTES_PER_SECOND / read}
    out["share_of_nominal_limit"] = rate / out["nominal_limit"]
    if context.copy_bytes_per_second:
        out["measured_limit"] = batch * context.copy_bytes_per_second / read
        out["share_of_measured_limit"] = rate / out["measured_limit"]
    return out


def measure(context: Context, load: Load) -> dict:
    context.program("engine_bench")
    if context.dry:
        load = dataclasses.replace(load, shape="tiny", batches=DRY_SIZES["batches"], rounds=1)
    size = sum(random_checkpoint.file_bytes(load.shape, kind) for kind in load.kinds)
    workers: dict[str, Worker] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="normserve-gpu-", dir=folder_for(size)) as work:
        try:
            start(context, load, pathlib.Path(work), workers)
            described = answers_of(workers, problems)
            rates = rounds_of(context, load, workers) if workers else {}
        except TimeoutError as late:
            raise NotRun("not run: out of time") from late
        finally:
            for worker in workers.values():
                worker.stop()
    status = "failed" if problems else "measured"
    if load.transformers and not context.dry and not has_module("transformers"):
        problems.append("transformers: not run: no transformers")
    return {"status": status, "problems": problems,
            **figures_of(context, load, workers, {k: v for k, v in described.items() if k in load.kinds}, rates)}
