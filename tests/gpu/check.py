#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and measures the CUDA device of this machine, most important first, within a time limit.

Writes report.json after every row, and report.md at the end; each program's own words are in logs/. Needs a GPU, or
--dry-run, which runs every row from start to end on the emulated device and measures nothing.

exit code: 0 all rows that ran are right, 1 one failed, 2 there is no GPU"""
import argparse
import dataclasses
import pathlib
import sys
import time
from typing import Callable

import correctness
import norm_speed
import gpu_report
from generation import Load, measure
from programs import ROOT, Budget, Context, NotRun, gpu

NO_GPU = "check.sh: no NVIDIA GPU was found here; --dry-run runs the check itself on the emulated device"
BEST = ("bhyt", "rms", "bhytstar", "peri", "simplegpt", "prenorm")
PAIR = ("bhyt", "rms")
OTHERS = ("lns", "dyt", "preqknorm")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    title: str
    seconds: float  # at most
    run: Callable[[Context], dict]
    least: float = 5  # less time than that is not worth beginning it


def generation(load: Load) -> Callable[[Context], dict]:
    return lambda context: measure(context, load)


ROWS = [
    Row("programs", "programs load", 30, correctness.describe),
    Row("golden", "golden cases through DeviceRunner", 75, correctness.golden),
    Row("kernels", "kernel tests", 90, correctness.kernel_tests),
    Row("sanitizer", "compute-sanitizer, norms' tests", 60, correctness.sanitizer),
    Row("norms", "norm kernels", 45, norm_speed.ours),
    Row("norms_torch", "the same in PyTorch", 70, norm_speed.torch),
    Row("generation", "1B", 190, generation(Load(BEST, transformers=("rms",))), least=40),
    Row("generation_batches", "1B, other batches", 60, generation(Load(PAIR, (8, 256), rounds=5)), 25),
    Row("generation_fp8", "1B, fp8", 40, generation(Load(PAIR, flags=("--quantize", "fp8"), rounds=7)), 20),
    Row("generation_int8", "1B, int8", 40, generation(Load(PAIR, flags=("--quantize", "int8"), rounds=7)), 20),
    Row("generation_invariant", "1B, batch-invariant", 40, generation(Load(PAIR, flags=("--batch-invariant",), rounds=7)),
        20),
    Row("generation_flashinfer", "1B, FlashInfer's attention", 40,
        generation(Load(PAIR, flags=("--attention", "flashinfer"), rounds=7)), 20),
    Row("golden_dependent", "golden cases, dependent launches", 60,
        lambda context: correctness.golden(context, "--dependent-launch"), 20),
    Row("generation_dependent", "1B, dependent launches", 40,
        generation(Load(PAIR, flags=("--dependent-launch",), rounds=7)), 20),
    Row("generation_norms", "1B, other norms", 60, generation(Load(OTHERS, rounds=7)), 25),
    Row("generation_3b", "3B", 90, generation(Load(PAIR, shape="llama-3b", rounds=7)), 35),
]


def run_row(row: Row, context: Context, total: Budget) -> dict:
    result = {"name": row.name, "title": row.title, "status": "not run: out of time", "seconds": 0.0}
    if total.left() < row.least:
        return result
    begin = time.monotonic()
    context.budget = Budget(min(row.seconds, total.left()))
    try:
        result |= row.run(context)
    except NotRun as why:
        result["status"] = str(why)
    except Exception as failure:  # one row must not cost the others
        result |= {"status": "failed", "problems": [f"{type(failure).__name__}: {failure}"]}
    result["seconds"] = round(time.monotonic() - begin, 1)
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="check.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="on the emulated device, with tiny sizes")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-report"), help="folder of the reports")
    parser.add_argument("--bin", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=540, help="of wall time that all rows have together")
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], help="these alone")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    device = "the emulated device" if args.dry_run else gpu()
    if not device:
        print(NO_GPU, file=sys.stderr)
        return 2
    total = Budget(args.seconds)
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    folder = args.bin or next((f for f in (ROOT / "bin", ROOT / "build/gpu/bin") if f.is_dir()), ROOT)
    if args.dry_run and not args.bin:
        folder = ROOT / "build/release/bin"
    context = Context(args.dry_run, folder.resolve(), logs.resolve(), total)
    run = {"device": device, "dry": args.dry_run, "rows": []}
    for row in ROWS:
        if args.rows and row.name not in args.rows:
            continue
        result = run_row(row, context, total)
        if args.dry_run:
            result = gpu_report.as_dry(result)
        run["rows"].append(result)
        print(f"{row.title}: {result['status']}, {result['seconds']} s", file=sys.stderr, flush=True)
        gpu_report.write_json(args.out / "report.json", run)
    text = gpu_report.markdown(run)
    (args.out / "report.md").write_text(text, encoding="utf-8")
    print(text)
    states = {row["status"] for row in run["rows"]}
    if not states & {"passed", "measured", gpu_report.RAN}:
        print(f"check.sh: nothing ran; programs were looked for in {folder} (--bin names another; "
              "tests/gpu/pack.sh puts them together)", file=sys.stderr)
        return 1
    return 1 if "failed" in states else 0


if __name__ == "__main__":
    sys.exit(main())
