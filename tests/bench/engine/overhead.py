#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gRPC and the client cost: tokens/s through a server beside the same engine alone, on the same cores.

In alternation: engine_bench submits N requests at once, then `normserve-client load` does, to a server with the
same model (token ids, no text). The ratio is the median of the rounds' own ratios. Then calls per second of
one token each, with --tiny, a small model.

usage (nothing beyond Python; build with -DNORMSERVE_BENCH=ON):
  overhead.py --bin build/release/bin --model SMOLLM2_FOLDER --tiny tests/golden/bhyt_rms_gqa
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time


class Server:
    def __init__(self, args: argparse.Namespace, model: str, work: pathlib.Path):
        ready = work / "ready.json"
        ready.unlink(missing_ok=True)
        command = [args.bin / "normserve", "--model", f"m={model}", "--dtype", args.dtype, "--ready-file", ready]
        command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--kv-cache-tokens", "32768"]
        command += ["--log-level", "warning"]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
        while not ready.exists():
            if self.process.poll() is not None:
                raise SystemExit(f"{command} ended with {self.process.returncode}")
            time.sleep(0.05)
        self.target = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"
        self.client = args.bin / "normserve-client"

    def load(self, *flags: object) -> dict:
        command = [self.client, "load", "--target", self.target, "--ignore-eos", "--omit-text", "--json", "--no-progress"]
        done = subprocess.run([*map(str, command), *map(str, flags)], capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        if report["requests"]["failed"]:
            raise SystemExit(done.stdout)
        return report

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the built programs")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tiny", help="another model, for calls per second")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        engine = subprocess.Popen([str(args.bin / "engine_bench"), args.model, "--dtype", args.dtype],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        server = Server(args, args.model, work)
        ratios, alone = [], []
        for seed in range(args.rounds + 1):
            engine.stdin.write(f"{args.streams} {args.prompt_tokens} {args.output_tokens}\n")
            engine.stdin.flush()
            rate = float(engine.stdout.readline())
            report = server.load("--concurrency", args.streams, "--requests", args.streams, "--prompt-tokens",
                                 args.prompt_tokens, "--output-tokens", args.output_tokens, "--load-seed", seed)
            if seed > 0:  # the first round warms up
                alone.append(rate)
                ratios.append(report["output_tokens_per_s"] / rate)
        engine.stdin.close()
        engine.wait(60)
        server.stop()
        print(f"{args.streams} streams: engine alone {statistics.median(alone):.1f} tokens/s, through gRPC "
              f"{statistics.median(ratios):.3f} of it ({min(ratios):.3f} to {max(ratios):.3f} in {args.rounds} rounds)")
        if args.tiny:
            server = Server(args, args.tiny, work)
            calls = [server.load("--concurrency", 64, "--connections", 4, "--requests", 20000, "--prompt-tokens", 4,
                                 "--output-tokens", 1, "--load-seed", seed)["requests_per_s"] for seed in range(3)]
            server.stop()
            print(f"one token a call: {statistics.median(calls):.0f} calls/s ({min(calls):.0f} to {max(calls):.0f})")


if __name__ == "__main__":
    main()
