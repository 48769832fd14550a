#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The norms of norm_bench as PyTorch computes them, eager and by torch.compile: one JSON object per operator, width,
number of rows and mode. Calls are timed in a CUDA graph, as ours are, on buffers that take turns as ours do.

usage (needs a GPU): torch_norms.py --widths 2048,4096 --rows 1,64,4096"""
import argparse
import json
import time

import torch
import torch.nn.functional as F

COLD_BYTES = 512 << 20
SAMPLES, SAMPLE_SECONDS = 15, 2e-3
EPS, GAIN = 1e-6, 0.5


def rms(x, delta, stat, gamma):
    wide = x.float()
    return (gamma * (GAIN * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS))).bfloat16()


def bhyt_first(x, delta, stat, gamma):
    wide = x.float()
    return (gamma * torch.tanh(GAIN * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS))).bfloat16()


def bhyt_second(x, delta, stat, gamma):
    return (gamma * torch.tanh(GAIN * x.float() * torch.rsqrt(stat + EPS))).bfloat16()


def after_add(norm):
    def add(x, delta, stat, gamma):
        h = x + delta
        return h, norm(h, delta, stat, gamma)
    return add


def activate(x, delta, stat, gamma):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def activate_simplegpt(x, delta, stat, gamma):
    gate, up = x.chunk(2, -1)
    return (F.silu(rms(gate, delta, stat, gamma).float()) * rms(up, delta, stat, gamma).float()).bfloat16()


OPERATORS = {"rms": rms, "bhyt_first": bhyt_first, "bhyt_second": bhyt_second, "add_rms": after_add(rms),
             "add_bhyt_first": after_add(bhyt_first), "add_bhyt_second": after_add(bhyt_second), "activate": activate,
             "activate_simplegpt": activate_simplegpt}


def inputs_of(op: str, width: int, rows: int) -> list[tuple]:
    """Of each buffer."""
    inner = 8 * width if op.startswith("activate") else width
    count = 1 if rows < 1024 else max(1, COLD_BYTES // (rows * inner * 2))
    gamma = torch.ones(inner // 2 if inner > width else width, device="cuda")
    stat = torch.ones(rows, 1, device="cuda")
    act = torch.randn(2, count, rows, inner, device="cuda", dtype=torch.bfloat16)
    return [(act[0, i], act[1, i], stat, gamma) for i in range(count)]


def samples_us(call, inputs: list[tuple]) -> list[float]:
    calls = max(len(inputs), 100)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for arguments in (inputs[0], inputs[-1]):
            call(*arguments)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(*inputs[i % len(inputs)])

    def seconds(replays: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds(1)
    replays = max(1, int(SAMPLE_SECONDS / seconds(1)))
    return [seconds(replays) * 1e6 / (replays * calls) for _ in range(SAMPLES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--widths", default="2048,4096")
    parser.add_argument("--rows", default="1,64,4096")
    args = parser.parse_args()
    widths, rows = ([int(n) for n in text.split(",")] for text in (args.widths, args.rows))
    with torch.inference_mode():
        for mode in ("eager", "compiled"):
            for width in widths:
                for count in rows:
                    for op, function in OPERATORS.items():
                        torch.compiler.reset()
                        call = torch.compile(function, dynamic=False) if mode == "compiled" else function
                        line = {"op": op, "mode": mode, "width": width, "rows": count}
                        line["samples_us"] = samples_us(call, inputs_of(op, width, count))
                        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
