# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own, run by compare.py in the engine's own Python.

  worker.py convert ADAPTER MODEL TARGET VARIANT
  worker.py serve   ADAPTER MODEL VARIANT THREADS OPTIONS(JSON)

serve says {"start_s", "version"} when the engine is up, then answers each line {"prompts", "output"}
with {"seconds", "times", "ids"}, times in seconds since the prompts were handed over, and the line
{"rss": true} with {"peak_rss_bytes"}; it ends with its input.
"""

import importlib
import json
import os
import sys
import time


def adapter_named(name: str):
    return importlib.import_module(f"engines.{name}")


def serve(name: str, model: str, variant: str, threads: str, options: str) -> None:
    # The engines print as they like; the answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    adapter = adapter_named(name)
    make = getattr(adapter, "make", None) or adapter.Engine
    begin = time.perf_counter()
    engine = make(model, variant, int(threads), json.loads(options))
    try:
        engine.start()
        answer({"start_s": time.perf_counter() - begin, "version": engine.version})
        for line in sys.stdin:
            request = json.loads(line)
            if request.get("rss"):
                answer({"peak_rss_bytes": engine.peak_rss_bytes()})
                continue
            answer(generate(engine, request["prompts"], request["output"]))
    finally:
        engine.stop()


def generate(engine, prompts: list[list[int]], output: int) -> dict:
    engine.prepare(len(prompts), len(prompts[0]) + output)
    begin = time.perf_counter()
    times, ids, *later = engine.generate(prompts, output)
    begin = later[0] if later else begin
    if any(len(row) != output for row in ids + times):
        raise RuntimeError(f"{output} tokens were asked for, {sorted(map(len, ids))} came")
    relative = [[moment - begin for moment in row] for row in times]
    return {"seconds": max(row[-1] for row in relative), "times": relative, "ids": ids}


def main() -> None:
    what, name, *arguments = sys.argv[1:]
    if what == "convert":
        adapter_named(name).convert(*arguments)
    else:
        serve(name, *arguments)


if __name__ == "__main__":
    main()
