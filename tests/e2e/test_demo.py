# SPDX-License-Identifier: Apache-2.0
"""The demo checkpoints say what the authors' code says, on every SIMD target that this machine has."""
import json
import pathlib
import re

import numpy as np
import pytest

import wire
from server import DEMO, Server, run

TARGETS = ["AVX3_DOT", "AVX3", "AVX2", "SSE4", "SSSE3", "SSE2", "EMU128", "SCALAR"]
FOLDERS = {"bhyt": DEMO / "bhyt-kjv", "simplegpt": DEMO / "simplegpt-kjv"}


def expected(model):
    return json.loads((FOLDERS[model] / "expected.json").read_text())


def check(server, model):
    assert expected(model)["greedy"]
    for case in expected(model)["greedy"]:
        count = len(case["generated_ids"])
        by_ids = server.generate(model, case["prompt_ids"], count, ignore_eos=True, logprobs=True)
        assert list(by_ids.token_ids) == case["generated_ids"]
        assert np.abs(np.array(by_ids.token_logprobs) - case["logprobs"]).max() <= 2e-4
        by_text = server.generate(model, case["prompt"], count, ignore_eos=True, logprobs=True)
        assert wire.essence(by_text) == wire.essence(by_ids)


@pytest.mark.parametrize("model", FOLDERS)
def test_greedy_ids_and_logprobs(demo, model):
    check(demo, model)


# What a processor needs for a target; the others need nothing.
PROCESSOR_FLAGS = {"AVX3_DOT": "avx512f avx512vl avx512cd avx512bw avx512dq avx512_vnni",
                   "AVX3": "avx512f avx512vl avx512cd avx512bw avx512dq", "AVX2": "avx2", "SSE4": "sse4_2",
                   "SSSE3": "ssse3", "SSE2": "sse2"}


def machine_has(target):
    flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split()
    return set(PROCESSOR_FLAGS.get(target, "").split()) <= set(flags)


@pytest.mark.parametrize("target", TARGETS)
def test_greedy_ids_on_simd_target(target):
    probe = run("--check", "--simd", target, "--model", f"bhyt={FOLDERS['bhyt']}", "--kv-cache-tokens", 512)
    if probe.returncode != 0 and "no such target" in probe.stderr and not machine_has(target):
        pytest.skip(f"this machine has no {target}")
    if probe.returncode != 0 and "no such target" in probe.stderr and target not in ("AVX2", "SSE4"):
        pytest.skip(f"this build has no {target}")
    with Server(FOLDERS, "--simd", target, "--kv-cache-tokens", 1024) as server:
        used = server.log()
        assert re.search(rf"simd={target}\b", used), f"{target} was asked for: {used}"
        for model in FOLDERS:
            check(server, model)


def test_simd_target_from_the_environment():
    with Server({"bhyt": FOLDERS["bhyt"]}, "--kv-cache-tokens", 512, env={"NORMSERVE_SIMD": "SSE4"}) as server:
        assert "simd=SSE4" in server.log()


def test_an_unknown_simd_target_is_refused():
    result = run("--check", "--model", f"bhyt={FOLDERS['bhyt']}", "--simd", "AVX9")
    assert result.returncode != 0
    assert "AVX9" in result.stderr


def test_bfloat16_follows_while_the_margin_is_clear():
    with Server(FOLDERS, "--dtype", "bfloat16", "--kv-cache-tokens", 1024) as server:
        for model in FOLDERS:
            for case in expected(model)["greedy"]:
                clear = next((i for i, m in enumerate(case["top1_minus_top2_logit"]) if m < 0.25),
                             len(case["generated_ids"]))
                answer = server.generate(model, case["prompt_ids"], max(clear, 1), ignore_eos=True)
                assert list(answer.token_ids)[:clear] == case["generated_ids"][:clear]
