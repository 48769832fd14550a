#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What long prompts cost those who wait for their next token.

Eight streams decode without pause. In alternation, round after round, they are alone, or one long prompt
after the other arrives beside them. Prints the time between tokens of the eight, p50 and p99, both ways,
and the long prompts' time to first token, for each set of server flags.

usage (nothing beyond Python; MODEL takes prompts of --prompt-tokens):
  long_prompts.py --server build/release/bin/normserve --client build/release/bin/normserve-client \\
      --model MODEL --flags "" --flags "--max-mixed-step-tokens 24"
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import tempfile
import time


class Server:
    def __init__(self, args: argparse.Namespace, flags: str, work: pathlib.Path):
        ready = work / "ready.json"
        ready.unlink(missing_ok=True)
        command = [args.server, "--model", f"m={args.model}", "--dtype", args.dtype, "--ready-file", str(ready)]
        command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *shlex.split(flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not ready.exists():
            if self.process.poll() is not None:
                raise SystemExit(f"{shlex.join(command)} ended with {self.process.returncode}")
            time.sleep(0.05)
        self.target = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def load(args: argparse.Namespace, server: Server, *flags: object) -> subprocess.Popen:
    command = [args.client, "load", "--target", server.target, "--ignore-eos", "--omit-text", "--json", "--no-progress",
               "--drain", "3600"]
    return subprocess.Popen([*command, *map(str, flags)], stdout=subprocess.PIPE, text=True)


def report_of(client: subprocess.Popen) -> dict:
    text, _ = client.communicate()
    report = json.loads(text)
    if client.returncode != 0 or report["requests"]["failed"]:
        raise SystemExit(f"a load failed: {text}")
    return report


def streams(args: argparse.Namespace, server: Server, seed: int) -> subprocess.Popen:
    return load(args, server, "--concurrency", args.streams, "--requests", args.streams, "--prompt-tokens", 16,
                "--output-tokens", args.output_tokens, "--load-seed", seed)


def inter_token(report: dict) -> dict:
    return report["latency_ms"]["inter_token"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--flags", action="append", default=[], help="more flags of a server, one string; repeat")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=300, help="of each stream, every round")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    print("| flags | alone p50, ms | p99 | beside long prompts p50, ms | p99 | p99 ratio | long prompts | to their first token, s |")
    print("|---|---|---|---|---|---|---|---|")
    for flags in args.flags or [""]:
        alone, beside, first, prompts = [], [], [], 0
        with tempfile.TemporaryDirectory() as work:
            server = Server(args, flags, pathlib.Path(work))
            report_of(load(args, server, "--requests", 1, "--prompt-tokens", 64, "--output-tokens", 8))
            for seed in range(args.rounds):
                alone.append(inter_token(report_of(streams(args, server, 2 * seed))))
                client = streams(args, server, 2 * seed + 1)
                while client.poll() is None:
                    prompts += 1
                    long = load(args, server, "--requests", 1, "--prompt-tokens", args.prompt_tokens,
                                "--output-tokens", 1, "--load-seed", 1000 + prompts)
                    first.append(report_of(long)["latency_ms"]["time_to_first_token"]["p50"] / 1e3)
                beside.append(inter_token(report_of(client)))
            server.stop()

        def median(rounds: list[dict], name: str) -> float:
            return statistics.median(r[name] for r in rounds)

        print(f"| `{flags or '(defaults)'}` | {median(alone, 'p50'):.1f} | {median(alone, 'p99'):.1f} "
              f"| {median(beside, 'p50'):.1f} | {median(beside, 'p99'):.1f} "
              f"| {median(beside, 'p99') / median(alone, 'p99'):.2f} | {prompts} | {statistics.median(first):.1f} |",
              flush=True)


if __name__ == "__main__":
    main()
