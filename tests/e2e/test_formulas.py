# SPDX-License-Identifier: Apache-2.0
"""Random combinations of settings against the float64 formulas, through gRPC.

NORMSERVE_FORMULA_SEED changes the draw (default 1), NORMSERVE_FORMULA_ROUNDS the models per kind (default 4).
"""
import json
import os
import struct

import numpy as np
import pytest

import checkpoints
import formulas
import random_checkpoints
import wire
from server import Server

SEED = int(os.environ.get("NORMSERVE_FORMULA_SEED", "1"))
ROUNDS = int(os.environ.get("NORMSERVE_FORMULA_ROUNDS", "4"))
KINDS = random_checkpoints.HF_TYPES + random_checkpoints.OTHER
TOLERANCE = 2e-4
GOLDEN = wire.ROOT / "tests/golden"


def read_safetensors(path):
    """Every tensor as float64 or int64; numpy knows no bfloat16."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = raw[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16, "I64": np.int64}[entry["dtype"]])
        out[name] = values.reshape(entry["shape"])
    return out


def golden_cases():
    return sorted(p.parent.name for p in GOLDEN.glob("*/golden.json") if "bf16" not in p.parent.name)


@pytest.mark.parametrize("case", golden_cases())
def test_the_formulas_are_the_authors(case):
    """The oracle itself, against the outputs of the authors' code: else the test below would prove nothing."""
    folder = GOLDEN / case
    golden = read_safetensors(folder / "golden.safetensors")
    model = formulas.make(json.loads((folder / "config.json").read_text()),
                          read_safetensors(folder / "model.safetensors"), 10 if case == "bhyt_seqlen" else None)
    for ids, want in zip(golden["input_ids"], golden["logits"]):
        assert np.abs(model.forward(ids) - want).max() < 1e-4


@pytest.fixture(scope="module", params=["on", "off"])
def random_models(request, tmp_path_factory):
    """One server with every drawn model, with and without folding; yields (server, {name: oracle})."""
    root, oracles = tmp_path_factory.mktemp("formulas"), {}
    for kind in KINDS:
        for i in range(ROUNDS):
            name = f"{kind}-{i}"
            config, tensors = random_checkpoints.checkpoint(kind, SEED * 1000 + i)
            checkpoints.write(root / name, config, tensors)
            oracles[name] = formulas.make(config, tensors)
    with Server({name: root / name for name in oracles}, "--fold", request.param, "--max-step-tokens", "7",
                "--block-size", "16", "--kv-cache-tokens", "256", "--threads", "1") as server:
        yield server, oracles


@pytest.mark.parametrize("name", [f"{kind}-{i}" for kind in KINDS for i in range(ROUNDS)])
def test_random_settings_match_the_formulas(random_models, name):
    """Score of a random prompt, every row whole; then a greedy continuation, by teacher forcing."""
    server, oracles = random_models
    vocab = random_checkpoints.VOCAB
    prompt = np.random.default_rng(hash_of(name)).integers(0, vocab, 20).tolist()
    want = formulas.log_softmax(oracles[name].forward(np.array(prompt)))
    item = server.stub.Score(wire.score_ids(name, [prompt], top=vocab), timeout=60).items[0]
    assert len(item.tokens) == len(prompt) and not item.tokens[0].HasField("logprob")
    for row, token in enumerate(item.tokens[1:]):
        got = np.full(vocab, np.nan)
        got[list(token.top_logprobs.token_ids)] = token.top_logprobs.logprobs
        assert np.abs(got - want[row]).max() < TOLERANCE, f"position {row}"
        assert abs(token.logprob - want[row][prompt[row + 1]]) < TOLERANCE

    answer = server.generate(name, prompt, 12, ignore_eos=True, logprobs=True)
    rows = formulas.log_softmax(oracles[name].forward(np.array(prompt + list(answer.token_ids)[:-1])))[len(prompt) - 1:]
    for row, token, logprob in zip(rows, answer.token_ids, answer.token_logprobs):
        assert abs(logprob - row[token]) < TOLERANCE
        assert row.max() - row[token] < 2 * TOLERANCE, "not the most probable token"


def hash_of(name):
    """The same in every process, unlike hash()."""
    return int.from_bytes(name.encode(), "little") % (2 ** 31)
