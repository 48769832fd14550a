# SPDX-License-Identifier: Apache-2.0
"""Faults of other servers that must be impossible here, each named after what it guards.

This file: text, sampling and parameters. All through gRPC, against the real binary.
"""
import json
import math
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import checkpoints
import wire
from server import DEMO, Server, status_of

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
