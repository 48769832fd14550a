# SPDX-License-Identifier: Apache-2.0
"""Rows of the check that time the norms: ours by norm_bench, PyTorch's by torch_norms.py in a process of its own."""
import statistics

from intervals import summary
from programs import HERE, OUT_OF_TIME, Context, NotRun, has_module, json_lines, python

LEAST_SHARE_OF_COPY = 0.9  # where there are many rows
MOST_DECODE_US = 2.5       # in a graph
MANY_ROWS = 4096


def sizes(context: Context) -> list[str]:
    widths, rows = ("64", "1,4") if context.dry else ("2048,4096", f"1,64,{MANY_ROWS}")
    return ["--widths", widths, "--rows", rows]


def ours(context: Context) -> dict:
    command = [context.program("norm_bench"), "--device", context.device, *sizes(context)]
    command += ["--samples", "2", "--sample-ms", "0"] if context.dry else []
    lines, problem = json_lines(context, "norm_bench", command, env=context.environment())
    figures = [of_line(line) for line in lines]
    copies = [line for line in lines if line["op"] == "copy"]
    if copies:
        context.copy_bytes_per_second = max(bytes_per_second(line) for line in copies)
    return {"status": "failed" if problem or not figures else "measured", "problems": [problem] if problem else [],
            "figures": figures, "copy_bytes_per_second": context.copy_bytes_per_second}


def bytes_per_second(line: dict) -> float:
    return line["bytes"] / statistics.median(line["samples_us"]) * 1e6


def of_line(line: dict) -> dict:
    """With its goal: bandwidth where there are many rows, time where there are few."""
    us = summary(line["samples_us"])
    many = line["rows"] >= MANY_ROWS
    met = line["share_of_copy"] >= LEAST_SHARE_OF_COPY if many else us["median"] <= MOST_DECODE_US
    goal = f">= {LEAST_SHARE_OF_COPY} of a copy" if many else f"<= {MOST_DECODE_US} us"
    return {"op": line["op"], "width": line["width"], "rows": line["rows"], "us": us, "host_us": line["host_us"],
            "bytes_per_second": bytes_per_second(line), "share_of_copy": line["share_of_copy"],
            "goal": "" if line["op"] == "copy" else goal, "met": line["op"] == "copy" or met}


def torch(context: Context) -> dict:
    """Figures as far as they came: compiling takes most of the time, and comes last."""
    if not has_module("torch"):
        raise NotRun("not run: no torch in this Python")
    if context.dry:
        raise NotRun("not run: the emulated device has no PyTorch")
    command = [python(), HERE / "torch_norms.py", *sizes(context)]
    lines, problem = json_lines(context, "torch_norms", command)
    figures = [{**line, "us": summary(line.pop("samples_us"))} for line in lines]
    late = problem.startswith(OUT_OF_TIME)
    return {"status": "failed" if (problem and not late) or not figures else "measured", "figures": figures,
            "problems": [problem] if problem else []}
