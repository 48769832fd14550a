#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a norm type costs: the same random model in each norm type, decoded in turn with a model to compare with.

Every type is paired with its twin: simplegpt and preqknorm with prenorm, all others with rms. A pair is
loaded into one process (step_bench: forward pass and head, no server), and its two models take turns,
round after round; the ratio is the median of the rounds' own ratios, the interval holds the true median
with 95 % (order statistics, whatever the noise's distribution). Checkpoints are written to --models once.

usage (numpy; build with -DNORMSERVE_BENCH=ON):
  norms.py --step-bench build/release/bin/step_bench --models FOLDER --shape 24x512 --rounds 30 --steps 20
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import random_models

TWIN = {"simplegpt": "prenorm", "preqknorm": "prenorm"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--step-bench", required=True, help="the program")
    parser.add_argument("--models", required=True, type=pathlib.Path, help="folder for the checkpoints")
    parser.add_argument("--shape", default="24x512", choices=sorted(random_models.SHAPES))
    parser.add_argument("--kinds", nargs="+", default=[k for k in random_models.KINDS if k not in ("rms", "prenorm")])
    parser.add_argument("--rows", nargs="+", default=["1", "8", "32"], help="sequences decoded at once")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="steps of one model in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json-out", type=pathlib.Path)
    return parser.parse_args()


def measure(args: argparse.Namespace, twin: str, kind: str) -> list[dict]:
    folders = []
    for name in (twin, kind):
        folders.append(args.models / f"{args.shape}-{name}")
        random_models.write(folders[-1], args.shape, name)
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [args.step_bench, *map(str, folders), "--rows", *args.rows, "--json-out", out.name]
        command += ["--rounds", str(args.rounds), "--steps", str(args.steps)]
        command += ["--threads", str(args.threads), "--dtype", args.dtype]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def norm_share(entry: dict) -> float:
    """Of the operators that are nothing but norms, with residual additions; those fused into others count as those."""
    norms = sum(entry["ops"].get(op, 0.0) for op in ("norm", "residual_norm"))
    return norms / sum(entry["ops"].values())


def main() -> None:
    args = arguments()
    results = []
    print("| norm | compared with | sequences | tokens/s | ratio | 95 % interval | norms' share of a step | its twin's |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in args.kinds:
        twin = TWIN.get(kind, "rms")
        entries = measure(args, twin, kind)
        results += entries
        for first, second in zip(entries[::2], entries[1::2]):
            seconds = sorted(second["seconds"])
            rate = second["tokens_per_step"] / seconds[len(seconds) // 2]
            ratio = second["ratio"]
            print(f"| {kind} | {twin} | {second['row']} | {rate:.4g} | {ratio['median']:.3f} "
                  f"| {ratio['low']:.3f} to {ratio['high']:.3f} "
                  f"| {100 * norm_share(second):.2f} % | {100 * norm_share(first):.2f} % |", flush=True)
        if args.json_out:
            args.json_out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
