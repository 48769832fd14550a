# SPDX-License-Identifier: Apache-2.0
"""One golden model of each family through the real server on the emulated CUDA kernels. All of test_golden.py runs on
them with NORMSERVE_TEST_DEVICE=cuda-emulated."""
import concurrent.futures
import subprocess

import numpy as np
import pytest

import wire
from server import BINARY, DEMO, Server
from test_golden import CASES, LOGPROB_TOLERANCE, golden

FAMILIES = ["bhyt_rms_gqa", "bhytstar_mean", "sg_simplegpt_rms_gqa_llama3", "sg_preqknorm_rms_gqa_llama3", "peri", "lns",
            "dyt", "nanogpt", "llama_linear"]


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


def test_models_share_the_device(emulated):
    """Recordings of one model's steps are made while others' run."""
    def tokens(case):
        recorded = golden(case)["generation"]
        answer = emulated.generate(case, recorded["prompt_ids"], len(recorded["generated_ids"]), temperature=0,
                                   ignore_eos=True)
        return list(answer.token_ids) == recorded["generated_ids"]

    with concurrent.futures.ThreadPoolExecutor(len(FAMILIES)) as pool:
        assert list(pool.map(tokens, FAMILIES)) == [True] * len(FAMILIES)


def graph_steps(server):
    metrics = server.metrics()
    return {graph: metrics.sum("normserve_step_graphs_total", model=FAMILIES[0], graph=graph)
            for graph in ("none", "recorded", "replayed")}


def test_decode_steps_are_replayed(emulated):
    before = graph_steps(emulated)
    emulated.generate(FAMILIES[0], [1, 2, 3], 6, temperature=0, ignore_eos=True)
    after = graph_steps(emulated)
    assert after["replayed"] > before["replayed"], (before, after)
    assert sum(after.values()) - sum(before.values()) == 6


def test_sampling_on_the_device_draws_what_the_cpu_draws(emulated):
    requests = [{"temperature": 0.8, "seed": 5}, {"temperature": 1.2, "seed": 6, "top_k": 7},
                {"temperature": 0.9, "seed": 7, "top_p": 0.8, "repetition_penalty": 1.2},
                {"temperature": 0.7, "seed": 8, "min_p": 0.05, "frequency_penalty": 0.4}]
    with Server({FAMILIES[0]: CASES[FAMILIES[0]]}, "--threads", 1, "--kv-cache-tokens", 256) as cpu:
        for sampling in requests:
            answers = [server.generate(FAMILIES[0], [9, 8, 7], 16, ignore_eos=True, **sampling).token_ids
                       for server in (emulated, cpu)]
            assert list(answers[0]) == list(answers[1]), sampling


def test_many_alternatives_are_given_too(emulated):
    answer = emulated.generate(FAMILIES[0], [9, 8, 7], 3, temperature=0, ignore_eos=True, top_logprobs=40)
    assert all(len(token.token_ids) == 40 for token in answer.top_logprobs)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused(device):
    result = subprocess.run([BINARY, "--model", f"a={DEMO / 'bhyt-kjv'}", "--device", device, "--check"], timeout=60,
                            capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"normserve: --device {device}: "), result.stderr
    assert lines[0].endswith("; allowed here: cpu, auto"), result.stderr


def test_auto_goes_on_with_the_cpu_and_says_why():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMSERVE_TEST_DEVICE", "auto")
        with Server({"a": DEMO / "bhyt-kjv"}, "--kv-cache-tokens", 256) as server:
            assert server.stub.GetModel(wire.pb.GetModelRequest(model="a")).device == "cpu"
            line = next(line for line in server.log().splitlines() if " event=device " in line)
            assert " device=cpu asked_for=auto why=" in line


@pytest.mark.parametrize("flags,said", [
    (["--quantize", "int4"], "--quantize int4: not on cuda-emulated; allowed there: none, int8, fp8"),
    (["--kv-cache-dtype", "int8"], "--kv-cache-dtype int8: not on cuda-emulated; allowed there: auto"),
    (["--device", "cpu", "--quantize", "fp8"], "--quantize fp8: not on cpu; allowed there: none, int8, int4"),
    (["--device", "cpu", "--quantize-head", "fp8"], "--quantize-head fp8: not on cpu; allowed there: none, int8, int4")])
def test_a_format_that_the_device_lacks_is_refused(flags, said):
    device = [] if "--device" in flags else ["--device", "cuda-emulated"]
    result = subprocess.run([BINARY, "--model", f"a={DEMO / 'bhyt-kjv'}", *device, *flags, "--check"], timeout=60,
                            capture_output=True, text=True, check=False)
    # LibTorch warns of the emulated kernels, which take the place of the CPU's.
    assert result.returncode == 1 and result.stderr.splitlines()[-1] == f"normserve: model 'a': {said}"


def test_attention_by_flashinfers_tiles_gives_the_recorded_tokens():
    """FlashInfer's kernel is a loop here; its tiles, the layout of keys and the way through the server are the same."""
    names = ["bhyt_rms_gqa", "sg_simplegpt_rms_gqa_llama3", "nanogpt"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMSERVE_TEST_DEVICE", "cuda-emulated")
        with Server({name: CASES[name] for name in names}, "--threads", 1, "--kv-cache-tokens", 256, "--attention",
                    "flashinfer") as server:
            for name in names:
                recorded = golden(name)["generation"]
                answer = server.generate(name, recorded["prompt_ids"], len(recorded["generated_ids"]), temperature=0,
                                         ignore_eos=True, logprobs=True)
                assert list(answer.token_ids) == recorded["generated_ids"]
                assert np.abs(np.array(answer.token_logprobs) - recorded["logprobs"]).max() <= LOGPROB_TOLERANCE


def test_flashinfer_is_refused_on_the_cpu():
    result = subprocess.run([BINARY, "--model", f"a={DEMO / 'bhyt-kjv'}", "--device", "cpu", "--attention", "flashinfer",
                             "--check"], timeout=60, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "normserve: model 'a': --attention flashinfer: not on cpu; allowed there: own\n"


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_dependent_launches_are_refused_on_the_cpu(device):
    result = subprocess.run([BINARY, "--model", f"a={DEMO / 'bhyt-kjv'}", "--device", device, "--dependent-launch", "--check"],
                            timeout=60, capture_output=True, text=True, check=False)
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and result.stdout == "" and len(lines) == 1, result
    assert lines[0].startswith("normserve: --dependent-launch: not on cpu")
    assert ("which --device auto took: " in lines[0]) == (device == "auto"), lines[0]
    assert lines[0].endswith("; leave it out")


def test_flashinfers_parts_have_room_for_the_last_block_of_a_full_context():
    """11 blocks of 48 are 528 positions, one split more than a context of 512."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMSERVE_TEST_DEVICE", "cuda-emulated")
        with Server({"bhyt": DEMO / "bhyt-kjv"}, "--threads", 1, "--kv-cache-tokens", 528, "--block-size", 48, "--attention",
                    "flashinfer") as server:
            answer = server.generate("bhyt", [1 + i % 200 for i in range(505)], 2, temperature=0, ignore_eos=True)
            assert len(answer.token_ids) == 2
