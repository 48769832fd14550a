#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a server that serves the SmolLM2 folder with transformers, through gRPC.

Per prompt: Tokenize gives transformers' ids; Generate gives, in float32, all 64 of transformers'
float32 ids and log-probabilities within 2e-3; in bfloat16 its bfloat16 ids up to the first step
whose two best logits are closer than 0.25, and Score of its whole continuation has the same best
token at every step that is decided by more. Prints the texts, because fluent English is for a
reader to see.

Needs: grpcio, grpcio-tools.
usage: check_smollm2.py REFERENCE.json --address HOST:PORT
       check_smollm2.py REFERENCE.json --server BINARY --model-folder DIR --dtype float32|bfloat16
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import grpc_stubs

UNDECIDED_MARGIN = 0.25
LOGPROB_TOLERANCE = 2e-3


def start_server(binary: str, folder: str, dtype: str) -> tuple[subprocess.Popen, str]:
    """A server on free ports; its gRPC address."""
    with tempfile.TemporaryDirectory(prefix="smollm2-") as state:
        return start_server_in(pathlib.Path(state), binary, folder, dtype)


def start_server_in(state: pathlib.Path, binary: str, folder: str, dtype: str):
    """The folder `state` may go once this returns."""
    ready = state / "ready.json"
    command = [binary, "--model", f"smollm2={folder}", "--dtype", dtype, "--device", "cpu"]
    command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready)]
    log = state / "server.log"
    with open(log, "w", encoding="utf-8") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    deadline = time.monotonic() + 300
    while not ready.exists() or not ready.read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            server.terminate()
            raise SystemExit(f"the server did not come up:\n{log.read_text()}")
        time.sleep(0.05)
    return server, f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"


def comparable_steps(reference: dict, dtype: str) -> int:
    """How many ids must be equal."""
    if dtype == "float32":
        return len(reference["ids"])
    for step, margin in enumerate(reference["margins"]):
        if margin < UNDECIDED_MARGIN:
            return step
    return len(reference["ids"])


def check_item(messages, stub, model: str, item: dict, dtype: str) -> list[str]:
    """The differences, as sentences."""
    wrong = []
    tokenized = stub.Tokenize(messages.TokenizeRequest(model=model, text=item["prompt"]))
    if list(tokenized.ids) != item["prompt_ids"]:
        wrong.append(f"Tokenize gives {list(tokenized.ids)}, transformers {item['prompt_ids']}")
    request = messages.GenerateRequest(model=model)
    request.token_ids.ids.extend(item["prompt_ids"])
    request.sampling.temperature = 0
    request.stop.max_new_tokens = len(item[dtype]["ids"])
    request.stop.ignore_eos = True
    request.output.logprobs = True
    answer = stub.Generate(request)
    ids, expected = list(answer.token_ids), item[dtype]
    steps = comparable_steps(expected, dtype)
    if ids[:steps] != expected["ids"][:steps]:
        first = next(i for i in range(steps) if ids[i : i + 1] != expected["ids"][i : i + 1])
        wrong.append(
            f"{dtype} ids differ at step {first}: {ids[first : first + 1]} instead of "
            f"{expected['ids'][first]} (margin {expected['margins'][first]:.3g})"
        )
    elif dtype == "float32":
        pairs = zip(answer.token_logprobs, expected["logprobs"], strict=True)
        worst = max(abs(a - b) for a, b in pairs)
        if worst > LOGPROB_TOLERANCE:
            wrong.append(f"log-probabilities differ by {worst:.2e}")
        print(f"  log-probabilities within {worst:.2e}")
    else:
        wrong += check_forced(messages, stub, model, item, expected)
    equal = next(
        (i for i, (a, b) in enumerate(zip(ids, expected["ids"], strict=False)) if a != b), len(ids)
    )
    print(f"  {equal} ids equal, {steps} required\n  {answer.text!r}")
    return wrong


def check_forced(messages, stub, model: str, item: dict, expected: dict) -> list[str]:
    """bfloat16 on transformers' own continuation: no early difference can hide a later one."""
    request = messages.ScoreRequest(model=model)
    pair = request.items.add().token_pair
    pair.context.ids.extend(item["prompt_ids"])
    pair.continuation.ids.extend(expected["ids"])
    scores = stub.Score(request).items[0].tokens
    distances = [abs(s.logprob - e) for s, e in zip(scores, expected["logprobs"], strict=True)]
    decided = [i for i, margin in enumerate(expected["margins"]) if margin >= UNDECIDED_MARGIN]
    other = [i for i in decided if not scores[i].is_argmax]
    mean = sum(distances) / len(distances)
    print(
        f"  on transformers' ids: log-probabilities within {max(distances):.3f}, mean {mean:.4f}; "
        f"argmax equal at {len(decided) - len(other)} of {len(decided)} decided steps"
    )
    return [f"argmax differs at the decided steps {other}"] if other else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("reference")
    parser.add_argument("--address", help="of a running server")
    parser.add_argument("--server", help="the normserve binary, to start one")
    parser.add_argument("--model-folder", help="for --server")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="for --server")
    arguments = parser.parse_args()
    with open(arguments.reference, encoding="utf-8") as file:
        reference = json.load(file)
    server = None
    if arguments.server:
        folder = arguments.model_folder or os.getcwd()
        server, address = start_server(arguments.server, folder, arguments.dtype or "float32")
    elif arguments.address:
        address = arguments.address
    else:
        parser.error("--address or --server is needed")
    try:
        messages, stub = grpc_stubs.connect(address)
        served = stub.ListModels(messages.ListModelsRequest()).models[0]
        wrong = []
        for item in reference["items"]:
            print(f"{served.dtype} {item['question']}")
            wrong += check_item(messages, stub, served.name, item, served.dtype)
    finally:
        if server:
            server.terminate()
            server.wait(30)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    print(f"{served.dtype}: {len(reference['items'])} prompts, {len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
