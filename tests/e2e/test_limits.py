# SPDX-License-Identifier: Apache-2.0
"""What must end in a sentence and not in a signal: memory and threads that run out at start, config files that say a
thing twice, answers too large to be written."""
import re
import resource
import subprocess

import grpc
import pytest

import checkpoints
import wire
from server import BINARY, DEMO, Server, run, status_of

BHYT = DEMO / "bhyt-kjv"
MIB = 1 << 20


def check_within(address_space, *flags):
    """--check of the demo model in a process that may map this many bytes."""
    return subprocess.run([str(BINARY), "--check", "--model", f"a={BHYT}", *map(str, flags)], capture_output=True,
                          text=True, timeout=120, check=False, preexec_fn=lambda: resource.setrlimit(
                              resource.RLIMIT_AS, (address_space, address_space)))


def test_memory_that_runs_out_while_loading_is_an_error_and_no_abort():
    flags = ("--threads", 1, "--kv-cache-tokens", 65536)  # the cache, 384 MiB, is the last thing to be allocated
    too_little, enough = 0, 8192 * MIB
    if check_within(enough, *flags).returncode != 0:
        pytest.skip("this build maps more than 8 GiB before it loads anything (a sanitizer)")
    result = None
    while enough - too_little > 128 * MIB:
        middle = (too_little + enough) // 2
        got = check_within(middle, *flags)
        if got.returncode == 0:
            enough = middle
        else:
            too_little, result = middle, got
    assert result.returncode == 1, result
    assert result.stderr.startswith("normserve: model 'a': ") and "memory" in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_threads_that_the_system_does_not_give_are_an_error_and_no_abort():
    flags = ("--kv-cache-tokens", 512)
    if check_within(8192 * MIB, "--threads", 1, *flags).returncode != 0:
        pytest.skip("this build maps more than 8 GiB before it loads anything (a sanitizer)")
    result = check_within(8192 * MIB, "--threads", 4096, *flags)
    assert result.returncode == 1 and "--threads 4096" in result.stderr, result
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.mark.parametrize("text,said", [
    (f"model: a={BHYT}\nmodel: b={BHYT}\n", "'model'"),
    (f"model: a={BHYT}\nmax-running: 3\nmax-running: 4\n", "'max-running'"),
    (f"model: a={BHYT}\n---\nmodel: b={BHYT}\n", "document"),
], ids=["two models", "two numbers", "two documents"])
def test_a_config_file_that_says_a_thing_twice_is_refused(tmp_path, text, said):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = run("--check", "--config", file)
    assert result.returncode == 2 and said in result.stderr, result
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_an_answer_that_protobuf_could_not_write_is_refused_at_the_door(tmp_path):
    checkpoints.llama(tmp_path, hidden=8, layers=1, vocab=60000, heads=1, kv_heads=1, max_positions=4096)
    with Server({"m": tmp_path}, "--kv-cache-tokens", 4096) as server:
        for call in (server.stub.Generate, lambda request, timeout: list(server.stub.GenerateStream(request, timeout))):
            code, details = status_of(call, wire.generate("m", [5], 2000, top_logprobs=60000), timeout=20)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert "top_logprobs: 60000" in details and "67108864" in details, details
        code, _ = status_of(server.stub.Score, wire.score_ids("m", [[5] * 2000], 60000), timeout=20)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert len(server.generate("m", [5], 2, top_logprobs=60000).top_logprobs[0].token_ids) == 60000
        server.idle()


def peak_bytes(folder, *flags):
    """The most that a server held until it served, and its model's weights and cache."""
    with Server({"a": folder}, "--threads", 1, "--kv-cache-tokens", 256, *flags) as server:
        card = server.stub.GetModel(wire.pb.GetModelRequest(model="a"), timeout=10)
        peak = re.search(r"event=serving .*peak_resident_bytes=(\d+)", server.log())
        return int(peak[1]), card.weight_bytes, card.kv_cache_bytes


@pytest.mark.parametrize("flags", [(), ("--quantize", "int8")], ids=["float32", "int8"])
def test_loading_holds_one_copy_of_the_weights(tmp_path, flags):
    """Freed memory goes back while loading: no heap of former tensors stays behind."""
    tiny, _, _ = peak_bytes(checkpoints.llama(tmp_path / "tiny"))
    if tiny > 400 * MIB:
        pytest.skip("this build holds more than 400 MiB before it loads anything (a sanitizer)")
    folder = checkpoints.llama(tmp_path / "large", hidden=1024, layers=10, vocab=2000, heads=8, kv_heads=8)
    peak, weights, cache = peak_bytes(folder, *flags)
    file = (folder / "model.safetensors").stat().st_size
    assert weights > (file * 9 // 10 if not flags else file // 5)
    step = 512 * 4 * (7 + 3 * 2 + 2) * 1024  # buffers of a warm-up step of 512 tokens
    assert peak - tiny <= 1.15 * weights + cache + step, (peak, tiny, weights, cache)
