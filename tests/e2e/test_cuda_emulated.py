# SPDX-License-Identifier: Apache-2.0
"""One golden model of each family through the real server on the emulated CUDA kernels. All of test_golden.py runs on
them with NORMSERVE_TEST_DEVICE=cuda-emulated."""
import subprocess

import numpy as np
import pytest

import wire
from server import BINARY, DEMO, Server
from test_golden import CASES, LOGPROB_TOLERANCE, golden

FAMILIES = ["bhyt_rms_gqa", "bhytstar_mean", "sg_simplegpt_rms_gqa_llama3", "sg_preqknorm_rms_gqa_llama3", "peri", "lns",
            "dyt", "nanogpt"]


@pytest.fixture(name="emulated", scope="module")
def _emulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMSERVE_TEST_DEVICE", "cuda-emulated")
        with Server({name: CASES[name] for name in FAMILIES}, "--threads", 1, "--kv-cache-tokens", 256) as server:
            yield server


@pytest.mark.parametrize("case", FAMILIES)
def test_the_cuda_kernels_give_the_recorded_tokens(emulated, case):
    recorded = golden(case)["generation"]
    answer = emulated.generate(case, recorded["prompt_ids"], len(recorded["generated_ids"]), temperature=0,
                               ignore_eos=True, logprobs=True)
    assert list(answer.token_ids) == recorded["generated_ids"]
    assert np.abs(np.array(answer.token_logprobs) - recorded["logprobs"]).max() <= LOGPROB_TOLERANCE


def test_the_model_says_where_it_runs(emulated):
    assert emulated.stub.GetModel(wire.pb.GetModelRequest(model=FAMILIES[0])).device == "cuda-emulated"


def test_a_device_that_is_not_there_is_refused():
    result = subprocess.run([BINARY, "--model", f"a={DEMO / 'bhyt-kjv'}", "--device", "cuda", "--check"], timeout=60,
                            capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "normserve: --device cuda: this build cannot serve on a GPU yet; allowed: cpu, auto\n"
