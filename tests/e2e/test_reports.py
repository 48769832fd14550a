# SPDX-License-Identifier: Apache-2.0
"""Faults of other servers that must be impossible here, each named after what it guards. All through gRPC, against
the real binary. (Kernel-level halves of A14 and A18 are in tests/model and tests/kernels.)"""
import json
import math
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

import checkpoints
import wire
from server import CLIENT, DEMO, Server, run, status_of, wait_until

Code = grpc.StatusCode
BHYT = DEMO / "bhyt-kjv"


# --- a model that says what the test wants

SCRIPT_TEXT = "ABCDEFGHIJKLMNOP"
EMOJI, CJK = "\U0001F600", "\u6f22\u5b57\u65e5\u672c"


def byte_level_alphabet():
    """Byte -> the character that stands for it in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {b: chr(b) for b in shown}, 0
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def vocabulary():
    return json.loads((BHYT / "tokenizer.json").read_text())["model"]["vocab"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """Models that say fixed byte sequences, one token per byte; `prompt` of one token starts at the beginning."""
    vocab, alphabet = vocabulary(), byte_level_alphabet()
    scripts = {
        "letters": SCRIPT_TEXT.encode(),
        "emoji": ("a" + EMOJI + "b" + CJK + "c" + EMOJI + "d").encode(),
        "garbage": b"x\xff\xfe\x80y" + CJK.encode()[:4] + b"z" + EMOJI.encode() + b"\xe6\xbc",
    }
    folders, ids = {}, {}
    for name, content in scripts.items():
        ids[name] = [vocab[alphabet[b]] for b in content]
        folders[name] = checkpoints.scripted(tmp_path_factory.mktemp(name), ids[name])
    with Server(folders, "--kv-cache-tokens", 2048) as server:
        server.script_bytes, server.script_ids = scripts, ids
        yield server


def test_the_script_is_followed(scripted):
    for name, ids in scripted.script_ids.items():
        answer = scripted.generate(name, [5], len(ids), ignore_eos=True)
        assert list(answer.token_ids) == ids


# --- A1

@pytest.mark.parametrize("stops,text,match", [
    (["DEFGHIJ"], "ABC", "DEFGHIJ"),
    (["DEFGHIX", "GHI"], "ABCDEF", "GHI"),  # the longer one's start must be given back
    (["P", "NO"], "ABCDEFGHIJKLM", "NO"),
    (["DEFX", "CDEY"], "ABCDEFGHIJKLMNOP", ""),
])
def test_a1_no_piece_of_a_stop_string_is_ever_streamed(scripted, stops, text, match):
    count = len(SCRIPT_TEXT)
    joined = scripted.stream("letters", [5], count, stop_strings=stops, ignore_eos=True)
    sent = ""
    for chunk in joined.chunks:
        sent += chunk.text
        assert text.startswith(sent), f"sent {sent!r} before it was decided"
    unary = scripted.generate("letters", [5], count, stop_strings=stops, ignore_eos=True)
    assert joined.text == unary.text == text
    assert joined.stop_match == unary.stop_match == match
    expected = wire.pb.FINISH_REASON_STOP_STRING if match else wire.pb.FINISH_REASON_MAX_NEW_TOKENS
    assert joined.finish_reason == unary.finish_reason == expected


def test_a1_a_stop_string_is_kept_only_when_asked(scripted):
    answer = scripted.generate("letters", [5], 16, stop_strings=["DEFGHIJ"], include_stop_string=True, ignore_eos=True)
    assert answer.text == "ABCDEFGHIJ"
    assert answer.usage.completion_tokens == 10


# --- A2

@pytest.mark.parametrize("name", ["emoji", "garbage"])
def test_a2_characters_split_over_tokens_arrive_whole(scripted, name):
    content, ids = scripted.script_bytes[name], scripted.script_ids[name]
    for count in range(1, len(ids) + 1):  # ends in the middle of characters, too
        joined = scripted.stream(name, [5], count, ignore_eos=True)
        unary = scripted.generate(name, [5], count, ignore_eos=True)
        request = wire.pb.DetokenizeRequest(model=name)
        request.token_ids.ids.extend(ids[:count])
        whole = scripted.stub.Detokenize(request, timeout=10).text
        assert joined.text == unary.text == whole, f"after {count} tokens"
        assert whole == content[:count].decode(errors="replace") or "\ufffd" in whole
    if name == "emoji":
        assert joined.text == content.decode()


def test_a2_an_undecided_character_is_held_back(scripted):
    texts = [c.text for c in scripted.stream("emoji", [5], 6, ignore_eos=True).chunks if c.text]
    assert "".join(texts) == "a" + EMOJI + "b"
    assert all("\ufffd" not in t for t in texts)


# --- A3, A16: who is gone costs nothing

def slow_stream(server, n=12000, timeout=120, prompt=(5, 6, 7)):
    return server.stub.GenerateStream(wire.generate("m", list(prompt), n, ignore_eos=True), timeout=timeout)


@pytest.fixture(scope="module")
def two_slots(long_model):
    with Server({"m": long_model}, "--max-running", 2, "--kv-cache-tokens", 40000) as server:
        yield server


def short_answer_in_time(server):
    start = time.monotonic()
    server.generate("m", [9], 2, timeout=20)
    return time.monotonic() - start


def fill_slots(server):
    streams = [slow_stream(server), slow_stream(server)]
    for stream in streams:
        for _ in range(3):
            next(stream)
    wait_until(lambda: server.metrics().sum("normserve_requests_running") == 2, "two running")
    return streams


def test_a3_cancelled_streams_free_their_slots_at_once(two_slots):
    for stream in fill_slots(two_slots):
        stream.cancel()
    assert short_answer_in_time(two_slots) < 1.0
    two_slots.idle()


def test_a3_a_killed_client_frees_its_slot(two_slots):
    clients = [subprocess.Popen([str(CLIENT), "generate", "--target", two_slots.address, "--token-ids", "5,6", "-n",
                                 "12000", "--ignore-eos", "--omit-text"], stdout=subprocess.PIPE) for _ in range(2)]
    for client in clients:
        client.stdout.read(4)  # it streams
    for client in clients:
        client.kill()
    assert short_answer_in_time(two_slots) < 1.0
    for client in clients:
        client.wait()
        client.stdout.close()
    two_slots.idle()


def test_a3_a_cancelled_unary_call_frees_its_slot(two_slots):
    calls = [two_slots.stub.Generate.future(wire.generate("m", [5, 6], 12000, ignore_eos=True)) for _ in range(2)]
    wait_until(lambda: two_slots.metrics().sum("normserve_requests_running") == 2, "two running")
    for call in calls:
        call.cancel()
    assert short_answer_in_time(two_slots) < 1.0
    two_slots.idle()


def test_a16_a_request_whose_deadline_passes_in_the_queue_is_never_run(two_slots):
    streams = fill_slots(two_slots)
    before = two_slots.metrics()
    code, _ = status_of(two_slots.stub.Generate, wire.generate("m", [8] * 700, 50), timeout=0.05)
    assert code == Code.DEADLINE_EXCEEDED
    wait_until(lambda: two_slots.metrics().ended("deadline") == before.ended("deadline") + 1, "counted as deadline")
    for stream in streams:
        stream.cancel()
    two_slots.idle()
    after = two_slots.metrics()
    assert after.sum("normserve_prompt_tokens_total") - before.sum("normserve_prompt_tokens_total") < 700
    assert after.ended("cancelled") == before.ended("cancelled") + 2


def test_a16_a_running_request_stops_at_its_deadline(two_slots):
    before = two_slots.metrics()
    start = time.monotonic()
    code, _ = status_of(list, slow_stream(two_slots, timeout=0.3))
    assert code == Code.DEADLINE_EXCEEDED
    two_slots.idle()
    assert time.monotonic() - start < 2
    after = two_slots.metrics()
    assert after.ended("deadline") == before.ended("deadline") + 1
    assert after.ended("length") == before.ended("length")
    generated = after.sum("normserve_generated_tokens_total")
    two_slots.generate("m", [5], 1)
    assert two_slots.metrics().sum("normserve_generated_tokens_total") == generated + 1, "it went on"


# --- A5

@pytest.fixture(scope="module")
def tiny_pool(long_model):
    with Server({"m": long_model}, "--block-size", 16, "--kv-cache-tokens", 256) as server:
        yield server


def test_a5_a_prompt_beyond_the_pool_is_refused_and_blocks_nobody(tiny_pool):
    start = time.monotonic()
    code, details = status_of(tiny_pool.generate, "m", [5] * 300, 10)
    assert code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED) and "256" in details
    assert time.monotonic() - start < 2
    assert len(tiny_pool.generate("m", [5] * 5, 5, timeout=5, ignore_eos=True).token_ids) == 5


def test_a5_a_prompt_beyond_the_context_is_refused_or_cut_on_the_left(demo):
    code, details = status_of(demo.generate, "bhyt", [5] * 600, 10)
    assert code == Code.INVALID_ARGUMENT and "512" in details
    ids = [5 + i % 90 for i in range(600)]
    cut = demo.generate("bhyt", ids, 10, truncate_prompt_tokens=100, logprobs=True)
    assert wire.essence(cut) == wire.essence(demo.generate("bhyt", ids[-100:], 10, logprobs=True))
    assert cut.usage.prompt_tokens == 100


def test_a5_a_request_that_cannot_grow_ends_with_a_length_reason_and_others_go_on(tiny_pool):
    with ThreadPoolExecutor(4) as pool:
        big = pool.submit(tiny_pool.generate, "m", [5] * 200, 500, ignore_eos=True)
        small = [pool.submit(tiny_pool.generate, "m", [7, i], 20, ignore_eos=True) for i in range(3)]
        for call in small:
            assert len(call.result().token_ids) == 20
        answer = big.result()
    assert answer.finish_reason == wire.pb.FINISH_REASON_CONTEXT_LIMIT
    assert 200 + len(answer.token_ids) in (256, 257)
    assert answer.usage.completion_tokens == len(answer.token_ids)
    tiny_pool.idle()


# --- A6

def test_a6_the_queue_is_bounded_and_overflow_is_refused_at_once(long_model):
    with Server({"m": long_model}, "--max-running", 1, "--max-waiting", 4, "--kv-cache-tokens", 8192) as server:
        request = wire.generate("m", [5, 6], 60, ignore_eos=True)

        def call(_):
            start = time.monotonic()
            try:
                server.stub.Generate(request, timeout=60)
                return "ok", time.monotonic() - start
            except grpc.RpcError as error:
                return error.code(), time.monotonic() - start

        with ThreadPoolExecutor(50) as pool:
            results = list(pool.map(call, range(50)))
        ok = [t for code, t in results if code == "ok"]
        refused = [t for code, t in results if code == Code.RESOURCE_EXHAUSTED]
        assert len(ok) + len(refused) == 50 and len(ok) >= 4 and refused
        assert sorted(refused)[len(refused) // 2] < max(1.0, max(ok))
        metrics = server.metrics()
        assert metrics.ended("rejected") == len(refused) and metrics.ended("length") == len(ok)
        assert len(server.generate("m", [5, 6], 3, ignore_eos=True).token_ids) == 3


def test_a6_waiting_tokens_are_bounded_too(long_model):
    with Server({"m": long_model}, "--max-running", 1, "--max-waiting-tokens", 1000, "--kv-cache-tokens", 16384) as server:
        running = slow_stream(server)
        next(running)
        waiting = server.stub.Generate.future(wire.generate("m", [5] * 900, 1))
        wait_until(lambda: server.metrics().sum("normserve_requests_waiting") == 1, "one waiting")
        code, details = status_of(server.generate, "m", [5] * 200, 1)
        assert code == Code.RESOURCE_EXHAUSTED and "1000" in details
        running.cancel()
        assert len(waiting.result(timeout=60).token_ids) == 1


# --- A7

def test_a7_a_seeded_request_does_not_see_its_neighbours(demo_models):
    seeded = wire.generate("bhyt", "And the LORD said unto Moses", 16, temperature=0.8, seed=42, logprobs=True)
    with Server({"bhyt": demo_models["bhyt"]}, "--block-size", 16, "--kv-cache-tokens", 512) as server:
        alone = wire.essence(server.stub.Generate(seeded, timeout=60))
        for neighbours in (1, 7, 31):
            for first in (True, False):
                with ThreadPoolExecutor(neighbours + 1) as pool:
                    calls = []
                    if first:
                        calls.append(pool.submit(server.stub.Generate, seeded, timeout=60))
                    others = [pool.submit(server.generate, "bhyt", f"Thou shalt not {i}", 60, temperature=0.8)
                              for i in range(neighbours)]
                    if not first:
                        calls.append(pool.submit(server.stub.Generate, seeded, timeout=60))
                    assert wire.essence(calls[0].result()) == alone, f"{neighbours} neighbours"
                    for other in others:
                        other.result()
        assert server.metrics().sum("normserve_preemptions_total") > 0, "it was never under pressure"


def test_a7_requests_without_a_seed_draw_their_own(demo):
    answers = [demo.generate("bhyt", "And", 12, temperature=1.5) for _ in range(4)]
    assert len({a.seed for a in answers}) == 4 and len({tuple(a.token_ids) for a in answers}) > 1
    again = demo.generate("bhyt", "And", 12, temperature=1.5, seed=answers[0].seed)
    assert list(again.token_ids) == list(answers[0].token_ids)


# --- A8

def test_a8_tiny_temperature_and_top_p_are_greedy(demo):
    before = demo.metrics().sum("normserve_nonfinite_rows_total")
    greedy = demo.generate("bhyt", "In the beginning", 40)
    sweep = [{"temperature": t, "top_p": p, "top_k": k} for t in (0, 1e-8, 1e-4) for p in (1.0, 1e-6, 1e-4, 0.9)
             for k in (0, 1, 50)]
    sweep += [{"temperature": 1.0, "top_p": p} for p in (1e-6, 1e-4)] + [{"temperature": 1.0, "top_k": 1}]
    for fields in sweep:
        answer = demo.generate("bhyt", "In the beginning", 40, seed=1, **fields)
        assert list(answer.token_ids) == list(greedy.token_ids), fields
        assert answer.text == greedy.text
    # At 1e-2 only margins of a few hundredths could flip: the first nine are above 0.3.
    warm = demo.generate("bhyt", "In the beginning", 9, seed=1, temperature=1e-2)
    assert list(warm.token_ids) == list(greedy.token_ids)[:9]
    assert demo.metrics().sum("normserve_nonfinite_rows_total") == before


# --- A9

def test_a9_a_faulty_logit_bias_touches_nobody(demo):
    vocab = demo.stub.GetModel(wire.pb.GetModelRequest(model="bhyt"), timeout=10).vocab_size
    request = wire.generate("bhyt", "And God said", 300, ignore_eos=True, logprobs=True)
    undisturbed = wire.essence(demo.stub.Generate(request, timeout=60))
    stream = demo.stub.GenerateStream(request, timeout=60)
    joined = wire.Joined([next(stream)])
    for bias in ({vocab: 1.0}, {191222: -100.0}, {2**32 - 1: 1.0}, {3: math.nan}, {3: math.inf}, {3: -math.inf},
                 {3: 100.5}):
        code, details = status_of(demo.generate, "bhyt", "And", 5, logit_bias=bias)
        assert code == Code.INVALID_ARGUMENT and "logit_bias" in details, bias
    for chunk in stream:
        joined.add(chunk)
    assert wire.essence(joined) == undisturbed
    assert demo.serving() and demo.serving("bhyt")


def test_a9_every_parameter_out_of_range_is_refused_by_name(demo):
    faulty = [("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_p", 0.0),
              ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.5), ("repetition_penalty", 0.0),
              ("repetition_penalty", 11.0), ("presence_penalty", 2.5), ("frequency_penalty", -3.0),
              ("max_new_tokens", 0), ("stop_strings", [""]), ("stop_strings", ["a" * 257]),
              ("stop_strings", ["a"] * 17), ("stop_token_ids", [2048]), ("stop_token_ids", [1] * 65),
              ("top_logprobs", 2049), ("priority", 101), ("priority", -101), ("truncate_prompt_tokens", 0)]
    for field, value in faulty:
        code, details = status_of(demo.generate, "bhyt", "And", **{field: value})
        assert code == Code.INVALID_ARGUMENT and field in details, (field, value, details)
    for prompt in ([], [2048], [2**32 - 1]):
        code, _ = status_of(demo.generate, "bhyt", prompt, 5)
        assert code == Code.INVALID_ARGUMENT
    code, details = status_of(demo.stub.Generate, wire.pb.GenerateRequest(model="bhyt"))
    assert code == Code.INVALID_ARGUMENT and "prompt" in details
    code, details = status_of(demo.generate, "bhyt", "And", 5, min_new_tokens=6)
    assert code == Code.INVALID_ARGUMENT and "min_new_tokens" in details


# --- A10

def test_a10_min_new_tokens_counts_generated_tokens_and_masks_end_tokens_only(demo):
    prompt = [5 + i % 50 for i in range(100)]
    answer = demo.generate("bhyt", prompt, 60, min_new_tokens=40, logit_bias={1: 100.0})
    assert len(answer.token_ids) == 41 and 1 not in list(answer.token_ids)[:40] and answer.token_ids[40] == 1
    assert answer.finish_reason == wire.pb.FINISH_REASON_EOS
    last = demo.generate("bhyt", prompt, 10, min_new_tokens=10, logit_bias={2047: 100.0})
    assert list(last.token_ids) == [2047] * 10
    ignored = demo.generate("bhyt", prompt, 10, ignore_eos=True, logit_bias={1: 100.0})
    assert list(ignored.token_ids) == [1] * 10
    assert ignored.finish_reason == wire.pb.FINISH_REASON_MAX_NEW_TOKENS


# --- A11

def test_a11_bos_is_added_once(demo):
    def ids(text, add=None):
        request = wire.pb.TokenizeRequest(model="bhyt", text=text)
        if add is not None:
            request.add_special_tokens = add
        return list(demo.stub.Tokenize(request, timeout=10).ids)

    plain, templated = "In the beginning", "<|bos|>In the beginning"
    expected = json.loads((BHYT / "expected.json").read_text())["greedy"][0]["prompt_ids"]
    assert ids(plain) == ids(templated) == expected and expected[:2] != [0, 0]
    assert ids(plain, True) == expected and ids(plain, False) == expected[1:]
    assert ids(templated, False) == expected
    assert ids(templated, True) == [0] + expected, "an explicit flag wins"
    for text in (plain, templated):
        for add in (None, True, False):
            fields = {} if add is None else {"add_special_tokens": add}
            answer = demo.generate("bhyt", text, 8, logprobs=True, **fields)
            assert answer.usage.prompt_tokens == len(ids(text, add))
            by_ids = demo.generate("bhyt", ids(text, add), 8, logprobs=True)
            assert wire.essence(answer) == wire.essence(by_ids)


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


# --- A17

def test_a17_every_request_ends_in_exactly_one_reason(long_model):
    with Server({"m": long_model}, "--max-running", 2, "--max-waiting", 3, "--kv-cache-tokens", 40000) as server:
        for _ in range(10):
            server.generate("m", [5], 3, ignore_eos=True)
        for _ in range(2):
            assert status_of(server.generate, "m", [5], 3, top_p=2.0)[0] == Code.INVALID_ARGUMENT
        for _ in range(3):
            assert status_of(list, slow_stream(server, timeout=0.2))[0] == Code.DEADLINE_EXCEEDED
        server.idle()
        streams = fill_slots(server)
        waiting = [slow_stream(server) for _ in range(3)]
        wait_until(lambda: server.metrics().sum("normserve_requests_waiting") == 3, "three waiting")
        mid = server.metrics()
        assert mid.in_flight() == 5
        assert mid.sum("normserve_requests_running") + mid.sum("normserve_requests_waiting") == 5
        for _ in range(2):
            assert status_of(server.generate, "m", [5], 3)[0] == Code.RESOURCE_EXHAUSTED
        for stream in streams + waiting:
            stream.cancel()
        server.idle()
        metrics = server.metrics()
        reasons = {"length": 10, "cancelled": 5, "deadline": 3, "rejected": 2, "invalid": 2, "stop": 0, "internal": 0,
                   "shutdown": 0, "scored": 0}
        assert {reason: metrics.ended(reason) for reason in reasons} == reasons
        assert metrics.sum("normserve_requests_received_total") == sum(reasons.values())


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


def test_deltas_of_a_slow_reader_wait_for_it_and_hold_up_nobody(two_slots):
    """A reader that takes nothing must not stop the engine (the outbox is its own)."""
    slow = slow_stream(two_slots, n=400)
    next(slow)
    done = threading.Event()

    def other():
        two_slots.generate("m", [5], 200, ignore_eos=True)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    assert done.is_set()
    rest = wire.Joined(slow)
    assert rest.finish_reason == wire.pb.FINISH_REASON_MAX_NEW_TOKENS and rest.usage.completion_tokens == 400
