# SPDX-License-Identifier: Apache-2.0
"""--quantize: the weights are what a plain reading of the format says, results stay near the unquantised ones, and the
one numeric path holds as for any other weights."""
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import wire
from server import DEMO, Server, run
from test_concurrency import at_once, mixed_requests
from test_formulas import read_safetensors

FOLDERS = {"bhyt": DEMO / "bhyt-kjv", "simplegpt": DEMO / "simplegpt-kjv"}
GROUP = 32


def bfloat16_up(x):
    """The least bfloat16 not below x >= 0."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0xFFFF) & np.uint32(0xFFFF0000)).view(np.float32)


def rounded_to_int8(weight):
    """weight [N, K] as --quantize int8 holds it: per output and 32 inputs, scale = largest / 127."""
    out = np.empty_like(weight)
    for start in range(0, weight.shape[1], GROUP):
        part = weight[:, start:start + GROUP]
        scale = bfloat16_up(np.abs(part).max(axis=1, keepdims=True) / np.float32(127))
        with np.errstate(divide="ignore"):
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        out[:, start:start + GROUP] = np.clip(np.rint(part * inverse), -127, 127) * scale
    return out


def texts():
    cases = json.loads((FOLDERS["bhyt"] / "expected.json").read_text())["greedy"]
    return [case["prompt_ids"] + case["generated_ids"] for case in cases]


def scores(server, model):
    request = wire.pb.ScoreRequest(model=model)
    for ids in texts():
        request.items.add().token_ids.ids.extend(ids)
    items = server.stub.Score(request, timeout=120).items
    return [np.array([token.logprob for token in item.tokens if token.HasField("logprob")]) for item in items]


@pytest.mark.parametrize("model", FOLDERS)
def test_int8_weights_are_the_documented_ones(model, tmp_path):
    """A float32 server on weights rounded here and an int8 server on the original ones differ by the rounding of
    inputs alone: to 16 bits, or to 8 where the processor multiplies those."""
    folder = tmp_path / model
    shutil.copytree(FOLDERS[model], folder)
    folder.joinpath("model.safetensors").chmod(0o644)
    tensors = {name: t.astype(np.float32) for name, t in read_safetensors(folder / "model.safetensors").items()}
    save_file({name: rounded_to_int8(t) if t.ndim == 2 else t for name, t in tensors.items()},
              folder / "model.safetensors")
    with Server({model: folder}, "--fold", "off") as server:
        plain = scores(server, model)

    def difference(*flags):
        with Server({model: FOLDERS[model]}, "--fold", "off", "--quantize", "int8", *flags) as server:
            off = np.abs(np.concatenate(scores(server, model)) - np.concatenate(plain))
            return off, "simd=AVX3_DOT" in server.log()

    off, has_8_bits = difference()
    if has_8_bits:
        assert 1e-3 < off.max() <= 0.1 and off.mean() <= 0.01
        off, has_8_bits = difference("--simd", "avx3")
    assert off.max() <= 1e-3 and not has_8_bits


@pytest.mark.parametrize("model", FOLDERS)
def test_results_stay_near_the_unquantised_ones(model):
    with Server({model: FOLDERS[model]}) as server:
        want = scores(server, model)
    exact = np.concatenate(want)
    # Perplexity of the model's own greedy text, and the mean change of a log-probability.
    for flags, of_perplexity, of_mean in ((("int8",), 0.005, 0.03), (("int4",), 0.08, 0.25),
                                          (("int8", "--quantize-head", "none"), 0.005, 0.03)):
        with Server({model: FOLDERS[model]}, "--quantize", *flags) as server:
            got = np.concatenate(scores(server, model))
        assert abs(np.exp(exact.mean() - got.mean()) - 1) <= of_perplexity, flags
        assert 0 < np.abs(got - exact).mean() <= of_mean, flags


@pytest.mark.parametrize("model,quantize", [("bhyt", "int8"), ("simplegpt", "int4")])
def test_mixed_streams_equal_the_one_at_a_time_output(model, quantize):
    requests = mixed_requests(model, 16)
    with Server({model: FOLDERS[model]}, "--quantize", quantize, "--no-prefix-cache") as server:
        alone = [wire.essence(server.stub.Generate(r, timeout=120)) for r in requests]
    with Server({model: FOLDERS[model]}, "--quantize", quantize, "--block-size", 16, "--kv-cache-tokens", 640,
                "--max-step-tokens", 48, "--threads", 3) as server:
        for i, (answer, expected) in enumerate(zip(at_once(server, requests), alone, strict=True)):
            assert wire.essence(answer) == expected, f"request {i}"
        server.idle()


def test_it_is_told_and_takes_less_memory():
    bytes_of = {}
    for flags in ((), ("--quantize", "int8"), ("--quantize", "int4", "--quantize-head", "int4")):
        with Server({"bhyt": FOLDERS["bhyt"]}, *flags) as server:
            info = server.stub.GetModel(wire.pb.GetModelRequest(model="bhyt"), timeout=10)
            bytes_of[info.quantization, info.head_quantization] = info.weight_bytes
    assert set(bytes_of) == {("none", "none"), ("int8", "int8"), ("int4", "int4")}
    floats = bytes_of["none", "none"] / info.parameter_count  # bytes per weight, norms beside
    for kind, bits in (("int8", 8.5), ("int4", 5.0)):
        assert bytes_of[kind, kind] / info.parameter_count == pytest.approx(bits / 8, rel=0.02), floats
    shown = json.loads(run("inspect", FOLDERS["bhyt"], "--json", "--quantize", "int4").stdout)
    assert (shown["quantization"], shown["head_quantization"]) == ("int4", "int8")


@pytest.mark.parametrize("flags", [("--quantize", "int5"), ("--quantize-head", "8")])
def test_an_unknown_kind_is_refused(flags):
    done = run("--model", f"a={FOLDERS['bhyt']}", *flags)
    assert done.returncode == 2 and flags[0] in done.stderr and flags[1] in done.stderr and "int8" in done.stderr
