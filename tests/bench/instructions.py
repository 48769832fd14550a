#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions per token by callgrind: the one figure of a step that a busy machine does not change.

    python3 tests/bench/instructions.py --step-bench build/release/bin/step_bench --model DIR --rows 1 8 p64

Runs step_bench (-DNORMSERVE_BENCH=ON) on one thread with few steps and with more; what the two differ by is the steps'
own. Valgrind knows no AVX-512, so the kernels are those of AVX2. Prints a Markdown table."""
import argparse
import pathlib
import re
import subprocess
import tempfile

FEW, MANY = 2, 6


def instructions(arguments, row, steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/out", arguments.step_bench,
                   str(arguments.model), "--dtype", arguments.dtype, "--quantize", arguments.quantize, "--threads", "1",
                   "--rows", row, "--steps", str(steps), "--rounds", "1"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        collected = re.search(r"Collected : (\d+)", result.stderr)
        if result.returncode != 0 or collected is None:
            raise SystemExit(f"{' '.join(command)}\n{result.stderr[-2000:]}")
        return int(collected[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--model", required=True, type=pathlib.Path, nargs="+", metavar="DIR")
    parser.add_argument("--rows", nargs="+", default=["1", "8", "p64"], help="as step_bench takes them")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--valgrind", default="valgrind")
    arguments = parser.parse_args()
    print("| model | " + " | ".join(arguments.rows) + " |")
    print("|---|" + "---|" * len(arguments.rows))
    for model in arguments.model:
        arguments.model, cells = model, []
        for row in arguments.rows:
            extra = instructions(arguments, row, MANY) - instructions(arguments, row, FEW)
            cells.append(f"{extra / (MANY - FEW) / int(row.removeprefix('p')):,.0f}")
        print(f"| {model.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
