#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the cases of tests/golden_own through gRPC: one server serves them all in float32.

Per case: the recorded greedy ids, their log-probabilities within 2e-4, and for both rows of
input_ids every log-probability of the whole vocabulary within 2e-4 (Score with top_logprobs =
vocabulary).

Needs: numpy, safetensors, grpcio, grpcio-tools.
usage: check_golden.py --server BINARY [--folder FOLDER] [CASE ...]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import grpc
import grpc_stubs
import numpy as np
from safetensors.numpy import load_file

TOLERANCE = 2e-4


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def start(binary: str, cases: list[pathlib.Path]) -> tuple[subprocess.Popen, str]:
    with tempfile.TemporaryDirectory(prefix="golden-") as state:
        return start_in(pathlib.Path(state), binary, cases)


def start_in(state: pathlib.Path, binary: str, cases: list[pathlib.Path]):
    """The folder `state` may go once this returns."""
    ready = state / "ready.json"
    command = [binary, "--dtype", "float32", "--device", "cpu", "--ready-file", str(ready)]
    command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    command += ["--kv-cache-tokens", "1024", "--threads", "1"]
    for case in cases:
        command += ["--model", f"{case.name}={case}"]
    log = state / "server.log"
    with open(log, "w", encoding="utf-8") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    deadline = time.monotonic() + 120
    while not ready.exists() or not ready.read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            server.terminate()
            raise SystemExit(f"the server did not come up:\n{log.read_text()}")
        time.sleep(0.05)
    return server, f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"


def check_generation(messages, stub, case: str, golden: dict) -> tuple[list[str], float]:
    recorded = golden["generation"]
    request = messages.GenerateRequest(model=case)
    request.token_ids.ids.extend(recorded["prompt_ids"])
    request.sampling.temperature = 0
    request.stop.max_new_tokens = len(recorded["generated_ids"])
    request.stop.ignore_eos = True
    request.output.logprobs = True
    answer = stub.Generate(request)
    if list(answer.token_ids) != recorded["generated_ids"]:
        pairs = zip(answer.token_ids, recorded["generated_ids"], strict=False)
        step = next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer.token_ids))
        return [f"greedy ids differ from step {step}"], float("nan")
    worst = float(np.abs(np.array(answer.token_logprobs) - recorded["logprobs"]).max())
    return ([f"log-probabilities differ by {worst:.2e}"] if worst > TOLERANCE else []), worst


def check_rows(messages, stub, case: str, arrays: dict) -> tuple[list[str], float]:
    vocab = arrays["logits"].shape[-1]
    request = messages.ScoreRequest(model=case, top_logprobs=vocab)
    for row in arrays["input_ids"]:
        request.items.add().token_ids.ids.extend(int(i) for i in row)
    worst = 0.0
    for item, logits in zip(stub.Score(request).items, arrays["logits"], strict=True):
        expected = log_softmax(logits)
        for position, score in enumerate(item.tokens[1:]):
            got = np.full(vocab, np.nan)
            got[list(score.top_logprobs.token_ids)] = list(score.top_logprobs.logprobs)
            worst = np.maximum(worst, np.abs(got - expected[position]).max())
    wrong = [f"rows of log-probabilities differ by {worst:.2e}"] if not worst <= TOLERANCE else []
    return wrong, float(worst)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--server", required=True, help="the normserve binary")
    default = pathlib.Path(__file__).resolve().parents[1] / "golden_own"
    parser.add_argument("--folder", type=pathlib.Path, default=default)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    cases = [p.parent for p in sorted(arguments.folder.glob("*/golden.json"))]
    cases = [c for c in cases if not arguments.cases or c.name in arguments.cases]
    server, address = start(arguments.server, cases)
    failures = 0
    try:
        messages, stub = grpc_stubs.connect(address)
        for case in cases:
            golden = json.loads((case / "golden.json").read_text(encoding="utf-8"))
            arrays = load_file(case / "golden.safetensors")
            try:
                wrong, chosen = check_generation(messages, stub, case.name, golden)
                more, rows = check_rows(messages, stub, case.name, arrays)
                wrong += more
            except grpc.RpcError as error:
                wrong, chosen, rows = [f"{error.code().name}: {error.details()}"], 0.0, 0.0
            failures += bool(wrong)
            verdict = "; ".join(wrong) or "ok"
            print(f"{case.name:24s} chosen {chosen:.1e} rows {rows:.1e} {verdict}", flush=True)
    finally:
        server.terminate()
        server.wait(30)
    print(f"{len(cases)} cases, {failures} wrong")
    return 1 if failures or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
