#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text under several ways to serve one model, through gRPC's Score: what --quantize costs.

    python3 tests/bench/perplexity.py --model smollm2=DIR --text FILE [--tokens 20000] [--window 1024] \\
        --run "--dtype bfloat16" --run "--dtype bfloat16 --quantize int8"

The text is cut into windows that are scored apart, so that every run sees the same contexts. Needs grpcio, protobuf and
grpcio-health-checking (tests/e2e/requirements.txt)."""
import argparse
import math
import pathlib
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import wire  # noqa: E402
from server import Server  # noqa: E402


def log_probabilities(name, folder, flags, windows):
    out = []
    with Server({name: folder}, *flags) as server:
        for window in windows:
            request = wire.pb.ScoreRequest(model=name)
            request.items.add().token_ids.ids.extend(window)
            tokens = server.stub.Score(request, timeout=600).items[0].tokens
            out += [token.logprob for token in tokens if token.HasField("logprob")]
        weight_bytes = server.stub.GetModel(wire.pb.GetModelRequest(model=name), timeout=10).weight_bytes
    return out, weight_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="NAME=DIR")
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--run", action="append", required=True, metavar="FLAGS", help="server flags; the first is the base")
    arguments = parser.parse_args()
    name, folder = arguments.model.split("=", 1)
    text = arguments.text.read_text(encoding="utf-8")
    with Server({name: folder}) as server:
        ids = list(server.stub.Tokenize(wire.pb.TokenizeRequest(model=name, text=text), timeout=60).ids)
    ids = ids[:arguments.tokens]
    windows = [ids[i:i + arguments.window] for i in range(0, len(ids) - 1, arguments.window)]
    print(f"{len(ids)} tokens of {arguments.text.name}, windows of {arguments.window}\n")
    print("| flags | perplexity | to the first | mean abs change of a log-probability | bytes of weights |")
    print("|---|---|---|---|---|")
    base = None
    for run in arguments.run:
        logs, weight_bytes = log_probabilities(name, folder, shlex.split(run), windows)
        perplexity = math.exp(-sum(logs) / len(logs))
        base = base or (perplexity, logs)
        change = sum(abs(a - b) for a, b in zip(logs, base[1], strict=True)) / len(logs)
        print(f"| `{run}` | {perplexity:.4f} | {100 * (perplexity / base[0] - 1):+.3f} % | {change:.4f} | {weight_bytes} |",
              flush=True)


if __name__ == "__main__":
    main()
