# SPDX-License-Identifier: Apache-2.0
"""--kv-cache-dtype int8: results stay near those of a float32 cache, and the one numeric path holds over rounded keys
and values as over any others: they are a token's own, whoever computed them, and when."""
import json

import numpy as np
import pytest
import yaml

import checkpoints
import wire
from server import DEMO, Server, run
from test_concurrency import TEXT, at_once, mixed_requests
from test_golden import CASES, golden
from test_quantise import scores

FOLDERS = {"bhyt": DEMO / "bhyt-kjv", "simplegpt": DEMO / "simplegpt-kjv"}
INT8 = ("--kv-cache-dtype", "int8")
GOLDEN = ["bhyt_rms_gqa", "sg_simplegpt_rms_gqa_llama3", "nanogpt"]


@pytest.fixture(scope="module")
def alone():
    """Each request by itself on a server that reuses nothing."""
    with Server(FOLDERS, *INT8, "--no-prefix-cache") as server:
        return {model: [wire.essence(server.stub.Generate(r, timeout=120)) for r in mixed_requests(model, 32)]
                for model in FOLDERS}


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize("flags", [
    pytest.param((), id="defaults"),
    pytest.param(("--max-step-tokens", 16, "--draft-tokens", 4), id="steps-of-16-and-drafts"),
    pytest.param(("--block-size", 16, "--kv-cache-tokens", 640, "--max-step-tokens", 48, "--threads", 3),
                 id="small-pool"),
])
def test_mixed_streams_equal_the_one_at_a_time_output(alone, model, flags):
    with Server({model: FOLDERS[model]}, *INT8, *flags) as server:
        for i, (answer, expected) in enumerate(zip(at_once(server, mixed_requests(model, 32)), alone[model],
                                                   strict=True)):
            assert wire.essence(answer) == expected, f"request {i}"
        server.idle()


@pytest.mark.parametrize("model", FOLDERS)
def test_a_prefix_hit_changes_nothing(alone, model):
    with Server({model: FOLDERS[model]}, *INT8, "--block-size", 16) as server:
        for _ in range(2):
            answers = [server.stub.Generate(r, timeout=120) for r in mixed_requests(model, 32)]
            assert [wire.essence(a) for a in answers] == alone[model]
        assert sum(a.usage.cached_tokens for a in answers) > 500


@pytest.mark.parametrize("model", FOLDERS)
def test_preempted_requests_give_the_output_of_undisturbed_ones(model):
    requests = [wire.generate(model, TEXT[i * 10:i * 10 + 30], 140, logprobs=True, ignore_eos=True) for i in range(16)]
    with Server({model: FOLDERS[model]}, *INT8, "--no-prefix-cache") as server:
        expected = [wire.essence(server.stub.Generate(r, timeout=60)) for r in requests]
    with Server({model: FOLDERS[model]}, *INT8, "--block-size", 16, "--kv-cache-tokens", 480) as server:
        answers = at_once(server, requests)
        assert server.metrics().sum("normserve_preemptions_total") > 0, "the pool was not small enough"
        assert [wire.essence(a) for a in answers] == expected
        server.idle()


def golden_scores(case, *flags):
    recorded = golden(case)["generation"]
    request = wire.pb.ScoreRequest(model=case)
    request.items.add().token_ids.ids.extend([*recorded["prompt_ids"], *recorded["generated_ids"]])
    with Server({case: CASES[case]}, "--threads", 1, "--kv-cache-tokens", 512, *flags) as server:
        tokens = server.stub.Score(request, timeout=60).items[0].tokens
    return np.array([token.logprob for token in tokens if token.HasField("logprob")])


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_logprobs_stay_near_those_of_a_float32_cache(case):
    """Random weights, which make more of a rounding than trained ones do."""
    want = golden_scores(case)
    for flags in (INT8, (*INT8, "--simd", "avx2"), (*INT8, "--dtype", "bfloat16")):
        off = np.abs(golden_scores(case, *flags) - want)
        assert 0 < off.mean() <= 0.05 and off.max() <= 0.2, flags


@pytest.mark.parametrize("model", FOLDERS)
def test_results_stay_near_those_of_a_float32_cache(model):
    with Server({model: FOLDERS[model]}) as server:
        want = np.concatenate(scores(server, model))
    with Server({model: FOLDERS[model]}, *INT8) as server:
        got = np.concatenate(scores(server, model))
    assert abs(np.exp(want.mean() - got.mean()) - 1) <= 0.002  # perplexity of the model's own greedy text
    assert 0 < np.abs(got - want).mean() <= 0.005


def test_it_is_told_and_takes_a_quarter_of_the_memory(tmp_path):
    info = json.loads(run("inspect", FOLDERS["bhyt"], "--json", *INT8).stdout)
    assert info["kv_cache_dtype"] == "int8" and info["kv_bytes_per_token"] == 6 * 2 * 2 * (64 + 4)
    assert json.loads(run("inspect", FOLDERS["bhyt"], "--json").stdout)["kv_cache_dtype"] == "float32"
    config = tmp_path / "server.yaml"
    config.write_text(yaml.safe_dump({"model": f"m={FOLDERS['bhyt']}", "kv-cache-dtype": "int8",
                                      "kv-cache-tokens": 1024}))
    with Server({}, "--config", config) as server:
        card = server.stub.GetModel(wire.pb.GetModelRequest(model="m"), timeout=10)
        assert card.kv_cache_bytes == 1024 * info["kv_bytes_per_token"] and card.dtype == "float32"
        assert " kv_cache_dtype=int8 " in server.log()
    assert "of int8)" in run("--config", config, "--check").stdout


def test_what_cannot_be_is_refused(tmp_path):
    done = run("--model", f"a={FOLDERS['bhyt']}", "--kv-cache-dtype", "fp8")
    assert done.returncode == 2 and "--kv-cache-dtype" in done.stderr and "fp8" in done.stderr
    assert "auto" in done.stderr and "int8" in done.stderr
    odd = checkpoints.scripted(tmp_path / "odd", [5, 6, 7], hidden=130)
    done = run("--model", f"a={odd}", *INT8, "--check")
    assert done.returncode == 1 and done.stderr.splitlines() == [
        "normserve: model 'a': --kv-cache-dtype is \"int8\", which takes an even head_dim; this model's is 65; "
        "allowed for it: auto"]
