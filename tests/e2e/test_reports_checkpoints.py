# SPDX-License-Identifier: Apache-2.0
"""Faults of other servers that must be impossible here, each named after what it guards.

This file: what is loaded, and rows of NaN. All through gRPC, against the real binary.
"""
import json
import math
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

import checkpoints
import wire
from server import DEMO, Server, run, status_of

Code = grpc.StatusCode
BHYT = DEMO / "bhyt-kjv"


# --- A12

def test_a12_a_tied_head_is_the_embedding_with_or_without_a_head_in_the_file(tmp_path):
    def with_head(_, tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    folders = {"bare": checkpoints.llama(tmp_path / "bare", tied=True),
               "redundant": checkpoints.llama(tmp_path / "redundant", tied=True, change=with_head),
               "untied": checkpoints.llama(tmp_path / "untied", tied=False, change=with_head)}
    with Server(folders, "--kv-cache-tokens", 512, "--fold", "off") as server:
        answers = {name: server.generate(name, [3, 4, 5], 30, ignore_eos=True, logprobs=True) for name in folders}
        assert wire.essence(answers["bare"]) == wire.essence(answers["redundant"])
        # The untied one has the same numbers in its head here, so the same ids; it holds them twice.
        assert list(answers["untied"].token_ids) == list(answers["bare"].token_ids)
        info = {m.name: m for m in server.stub.ListModels(wire.pb.ListModelsRequest(), timeout=10).models}
        embedding = 256 * 64
        assert info["untied"].parameter_count == info["bare"].parameter_count + embedding
        assert info["bare"].weight_bytes <= info["untied"].weight_bytes - 2 * embedding


def all_tensor_names(folder):
    return sorted(load_file(folder / "model.safetensors"))


def must_not_load(folder, *words, name="m", flags=()):
    """The server ends with an error, names what is wrong in one line, and was never ready."""
    ready = folder / "never-ready.json"
    result = run("--model", f"{name}={folder}", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                 "--device", "cpu", "--ready-file", ready, *flags, timeout=60)
    assert result.returncode not in (0, -6, -8, -11), (result.returncode, result.stderr)
    assert not ready.exists()
    said = [line for line in result.stderr.splitlines() if line.startswith("normserve: ")]
    assert len(said) == 1, result.stderr
    for word in words:
        assert str(word) in said[0], f"{word!r} is not in: {said[0]}"
    return said[0]


def test_a12_a_missing_tensor_is_named(tmp_path):
    names = all_tensor_names(checkpoints.llama(tmp_path / "whole", layers=1))
    assert "lm_head.weight" in names

    def check(i):
        folder = checkpoints.llama(tmp_path / str(i), layers=1, change=lambda _, tensors: tensors.pop(names[i]))
        must_not_load(folder, names[i], "model.safetensors")

    with ThreadPoolExecutor(2) as pool:  # a process each: two at a time
        list(pool.map(check, range(len(names))))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors",
                                  "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_fifo_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, name):
    folder = checkpoints.llama(tmp_path, layers=1)
    (folder / name).unlink(missing_ok=True)
    if name.startswith("model."):
        (folder / "model.safetensors").unlink(missing_ok=True)
    os.mkfifo(folder / name)
    must_not_load(folder, f"{folder / name}: is not a regular file")


# --- A13

def rope(kind, key):
    return {key: kind, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}


def test_a13_both_spellings_of_the_rope_type_are_followed(tmp_path):
    scalings = {"type": rope("llama3", "type"), "rope_type": rope("llama3", "rope_type"), "none": None}
    folders = {name: checkpoints.llama(tmp_path / name, rope_scaling=scaling) for name, scaling in scalings.items()}
    prompt = [3 + i % 200 for i in range(200)]  # beyond the original length
    with Server(folders, "--kv-cache-tokens", 1024) as server:
        rows = {name: server.generate(name, prompt, 8, ignore_eos=True, top_logprobs=256) for name in folders}
        assert wire.essence(rows["type"]) == wire.essence(rows["rope_type"])
        assert wire.essence(rows["type"]) != wire.essence(rows["none"])


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_a13_an_unknown_rope_type_is_refused_by_name(tmp_path, key):
    folder = checkpoints.llama(tmp_path / "bogus", rope_scaling=rope("bogus", key))
    must_not_load(folder, "bogus", "rope", "llama3")


# --- A14

def f32_entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


CRAFTED = {
    "span-beyond-the-file": ({"t": f32_entry([1000, 1000], 0, 4_000_000)}, b"\0" * 4, None),
    "reversed-offsets": ({"t": f32_entry([1], 8, 4)}, b"\0" * 8, None),
    "wrong-span": ({"t": f32_entry([3], 0, 8)}, b"\0" * 8, None),
    "overlap": ({"t": f32_entry([2], 0, 8), "u": f32_entry([2], 4, 12)}, b"\0" * 12, None),
    "wrapping-shape": ({"t": f32_entry([2**62, 8], 0, 0)}, b"", None),
    "wrapping-offsets": ({"t": f32_entry([1], 2**64 - 4, 2**64 - 1)}, b"\0" * 4, None),
    "negative-shape": ({"t": f32_entry([-1], 0, 4)}, b"\0" * 4, None),
    "negative-offset": ({"t": f32_entry([1], -4, 0)}, b"\0" * 4, None),
    "unknown-dtype": ({"t": f32_entry([1], 0, 4, "X32")}, b"\0" * 4, None),
    "huge-header": ({"t": f32_entry([1], 0, 4)}, b"\0" * 4, 2**63),
    "header-beyond-the-file": ({"t": f32_entry([1], 0, 4)}, b"", 1_000_000),
    "header-not-json": (b"{not json", b"", None),
    "header-an-array": (b"[]", b"", None),
    "entry-without-offsets": ({"t": {"dtype": "F32", "shape": [1]}}, b"\0" * 4, None),
    "deeply-nested": (b"[" * 100_000, b"", None),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a14_crafted_offsets_are_refused(tmp_path, kind):
    header, data, length = CRAFTED[kind]
    folder = checkpoints.llama(tmp_path / kind, layers=1)
    checkpoints.raw_safetensors(folder / "model.safetensors", header, data, length)
    must_not_load(folder, "model.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a14_a_truncated_file_is_refused(tmp_path, keep):
    folder = checkpoints.llama(tmp_path / "cut", layers=1)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    must_not_load(folder, "model.safetensors")


def test_a14_each_dtype_string_is_held_to_its_size(tmp_path):
    for dtype, size in (("F64", 8), ("F16", 2), ("BF16", 2), ("I64", 8), ("BOOL", 1)):
        folder = checkpoints.llama(tmp_path / dtype, layers=1)
        checkpoints.raw_safetensors(folder / "model.safetensors", {"t": f32_entry([3], 0, 3 * size + 1, dtype)},
                                    b"\0" * (3 * size + 1))
        must_not_load(folder, "model.safetensors", "t")


def test_a14_an_index_that_lies_is_refused(tmp_path):
    folder = checkpoints.llama(tmp_path / "shards", layers=1)
    names = all_tensor_names(folder)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = folder / "model.safetensors.index.json"

    def write(weight_map):
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    write({name: "one.safetensors" for name in names})
    assert run("--check", "--model", f"m={folder}", "--kv-cache-tokens", 512).returncode == 0
    write({name: "two.safetensors" for name in names})
    must_not_load(folder, "two.safetensors")
    write({**{name: "one.safetensors" for name in names}, "model.extra.weight": "one.safetensors"})
    must_not_load(folder, "model.extra.weight")
    write({name: "../shards/one.safetensors" for name in names})
    must_not_load(folder, "index.json")


def test_loading_is_strict_about_shapes_norms_and_names(tmp_path):
    def reshaped(_, tensors):
        tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"][:-1]

    def extra_norm(_, tensors):
        tensors["model.layers.0.input_layernorm.lam"] = np.ones(1, np.float32)

    def no_lam(config, _):
        config.update(norm_type="bhyt", seq_len=16)

    must_not_load(checkpoints.llama(tmp_path / "a", change=reshaped), "model.layers.0.mlp.up_proj.weight",
                  "model.safetensors")
    must_not_load(checkpoints.llama(tmp_path / "b", change=extra_norm), "input_layernorm.lam")
    must_not_load(checkpoints.llama(tmp_path / "c", change=no_lam), "lam")
    must_not_load(checkpoints.llama(tmp_path / "d", norm_type="bogus"), "norm_type", "bogus", "rms", "bhyt", "peri")
    must_not_load(checkpoints.llama(tmp_path / "e", model_type="gemma2"), "gemma2")
    must_not_load(checkpoints.llama(tmp_path / "f", hidden_act="relu"), "hidden_act")
    bhyt = json.loads((BHYT / "config.json").read_text())
    tensors = load_bf16_free(BHYT)
    folder = checkpoints.write(tmp_path / "g", {**bhyt, "seq_len": None}, tensors)
    must_not_load(folder, "--bhyt-seq-len")
    folder = checkpoints.write(tmp_path / "h", {**bhyt, "var_approx_method": "bogus"}, tensors)
    must_not_load(folder, "var_approx_method", "bogus")
    folder = checkpoints.write(tmp_path / "i", {**bhyt, "var_approx_method": "beta"}, tensors)
    must_not_load(folder, "var_beta")


def load_bf16_free(folder):
    """bfloat16 tensors as float32, by hand: numpy has no such type."""
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            wide = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
            out[name] = wide.view(np.float32).reshape(entry["shape"])
    return out


# --- A18

@pytest.mark.parametrize("hidden,heads", [(100, 5), (36, 3), (8, 2), (3584 // 8, 7)])
def test_a18_odd_hidden_sizes_are_exact(tmp_path, hidden, heads):
    """A width that no vector register divides, against the formulas in float64."""
    folder = checkpoints.llama(tmp_path / "odd", hidden=hidden, heads=heads, kv_heads=1, layers=1, vocab=67)
    prompt = [3, 50, 7, 9, 11]
    with Server({"m": folder}, "--kv-cache-tokens", 512) as server:
        request = wire.score_ids("m", [prompt], top=67)
        tokens = server.stub.Score(request, timeout=60).items[0].tokens
        joined = server.stream("m", prompt, 20, ignore_eos=True, logprobs=True)
        assert len(joined.token_ids) == 20 and all(math.isfinite(x) for x in joined.token_logprobs)
    expected = llama_in_float64(folder, prompt)
    for position, token in enumerate(tokens[1:]):
        row = np.empty(67)
        row[list(token.top_logprobs.token_ids)] = list(token.top_logprobs.logprobs)
        assert np.abs(row - expected[position]).max() < 2e-4


def llama_in_float64(folder, ids):
    """[position, vocab] log-probabilities of a one-layer RMSNorm Llama, by the formulas."""
    config = json.loads((folder / "config.json").read_text())
    w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    heads, hidden, n = config["num_attention_heads"], config["hidden_size"], len(ids)
    dim = hidden // heads

    def norm(x, gamma):
        return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"])

    def rotate(x):  # [n, heads, dim], the two halves of a head are the pairs
        angle = np.arange(n)[:, None] / config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    at = "model.layers.0."
    x = w["model.embed_tokens.weight"][ids]
    h = norm(x, w[at + "input_layernorm.weight"])
    q = rotate((h @ w[at + "self_attn.q_proj.weight"].T).reshape(n, heads, dim))
    k = rotate((h @ w[at + "self_attn.k_proj.weight"].T).reshape(n, 1, dim))
    v = (h @ w[at + "self_attn.v_proj.weight"].T).reshape(n, 1, dim)
    scores = np.einsum("ihd,jkd->hij", q, k) / math.sqrt(dim)
    scores[:, np.triu_indices(n, 1)[0], np.triu_indices(n, 1)[1]] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jkd->ihd", p, v).reshape(n, -1) @ w[at + "self_attn.o_proj.weight"].T
    h = norm(x, w[at + "post_attention_layernorm.weight"])
    gate, up = h @ w[at + "mlp.gate_proj.weight"].T, h @ w[at + "mlp.up_proj.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    logits = norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# --- A19

BAD = 77  # the one token whose embedding is infinite


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    def poison(_, tensors):
        tensors["model.embed_tokens.weight"][BAD, 3] = np.inf

    folder = checkpoints.llama(tmp_path_factory.mktemp("poisoned"), change=poison)
    with Server({"m": folder}, "--block-size", 16, "--kv-cache-tokens", 1024) as server:
        yield server


def test_a19_a_nan_row_ends_its_own_request_alone(poisoned):
    prompts = [[3 + i, 4, 5, 6] for i in range(6)]
    fields = {"ignore_eos": True, "logprobs": True, "logit_bias": {BAD: -100.0}}
    clean = [wire.essence(poisoned.generate("m", p, 200, **fields)) for p in prompts]
    before = poisoned.metrics()
    with ThreadPoolExecutor(12) as pool:
        good = [pool.submit(poisoned.generate, "m", p, 200, **fields) for p in prompts]
        bad = [pool.submit(status_of, poisoned.generate, "m", [3, 4, BAD, 6 + i], 20) for i in range(6)]
        for call in bad:
            assert call.result()[0] == Code.INTERNAL
        assert [wire.essence(call.result()) for call in good] == clean
    after = poisoned.metrics()
    assert after.ended("internal") == before.ended("internal") + 6
    assert after.sum("normserve_nonfinite_rows_total") >= before.sum("normserve_nonfinite_rows_total") + 6
    poisoned.idle()
    assert poisoned.serving()


def test_a19_blocks_of_a_nan_request_are_not_reused_by_prefix(poisoned):
    start = [9 + i % 60 for i in range(40)]
    bad = start[:20] + [BAD] + start[20:]  # the bad token is in the second block of sixteen
    for _ in range(2):
        assert status_of(poisoned.generate, "m", bad, 5)[0] == Code.INTERNAL
        item = wire.score_ids("m", [bad])
        assert status_of(poisoned.stub.Score, item, timeout=20)[0] == Code.INTERNAL
    fields = {"ignore_eos": True, "logprobs": True, "logit_bias": {BAD: -100.0}}
    clean = poisoned.generate("m", start, 30, **fields)
    assert clean.usage.cached_tokens == 0, "a block of a failed request was reused"
    again = poisoned.generate("m", start, 30, **fields)
    assert again.usage.cached_tokens > 0
    assert wire.essence(again) == wire.essence(clean)


def test_a19_a_bad_token_in_the_middle_of_a_stream_ends_it_there(poisoned):
    joined = wire.Joined()
    code, _ = status_of(lambda: [joined.add(c) for c in poisoned.stub.GenerateStream(
        wire.generate("m", [3, 4, 5], 10, logit_bias={BAD: 100.0}, ignore_eos=True), timeout=20)])
    assert code == Code.INTERNAL
    assert list(joined.token_ids) == [BAD] * len(joined.token_ids) and len(joined.token_ids) <= 1
