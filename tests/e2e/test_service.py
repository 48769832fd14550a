# SPDX-License-Identifier: Apache-2.0
"""The service's surface: models, health, reflection, request ids, tokenization, scoring, folders without a tokenizer,
metrics and logs."""
import json
import re

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import checkpoints
import wire
from server import DEMO, Server, status_of, wait_until

Code = grpc.StatusCode
pb = wire.pb
METHODS = {"Generate", "GenerateStream", "Score", "Tokenize", "Detokenize", "ListModels", "GetModel"}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = checkpoints.llama(tmp_path_factory.mktemp("no-text") / "m")
    with Server({"bhyt": DEMO / "bhyt-kjv", "bare": folder}) as server:
        yield server


# --- models and health

def test_list_and_get_model(both):
    models = {m.name: m for m in both.stub.ListModels(pb.ListModelsRequest(), timeout=10).models}
    assert set(models) == {"bhyt", "bare"}
    info = both.stub.GetModel(pb.GetModelRequest(model="bhyt"), timeout=10)
    assert info == models["bhyt"]
    assert (info.architecture, info.norm_type, info.dtype, info.device) == ("llama", "bhyt", "float32", "cpu")
    assert info.vocab_size == 2048 and info.max_context_tokens == 512 and info.layer_count == 6
    assert info.tokenizer == "tokenizer.json" and list(info.eos_token_ids) == [1]
    assert info.kv_cache_tokens * 6 * 2 * 2 * 64 * 4 == info.kv_cache_bytes
    assert {s.site for s in info.norms} >= {"attn_in", "mlp_in", "final"}
    assert models["bare"].tokenizer == "none"


def test_an_unknown_model_is_not_found_and_the_known_ones_are_listed(both):
    for call in (lambda: both.generate("nobody", "x", 1), lambda: both.stream("nobody", "x", 1),
                 lambda: both.stub.Score(wire.score_ids("nobody", [[1, 2]])),
                 lambda: both.stub.GetModel(pb.GetModelRequest(model="nobody")),
                 lambda: both.stub.Tokenize(pb.TokenizeRequest(model="nobody", text="x")),
                 lambda: both.stub.Detokenize(pb.DetokenizeRequest(model="nobody"))):
        code, details = status_of(call)
        assert code == Code.NOT_FOUND and "nobody" in details and "bhyt" in details and "bare" in details


def test_the_model_name_may_be_left_out_when_there_is_one(both):
    code, details = status_of(both.generate, "", "x", 1)
    assert code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND) and "bhyt" in details
    with Server({"only": DEMO / "bhyt-kjv"}, "--kv-cache-tokens", 512) as server:
        assert server.generate("", "In the beginning", 3).usage.completion_tokens == 3


def test_health_per_model_and_overall(both):
    assert both.serving() and both.serving("bhyt") and both.serving("bare")
    code, _ = status_of(both.health, "nobody")
    assert code == Code.NOT_FOUND
    stub = health_pb2_grpc.HealthStub(both.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="bhyt"), timeout=10)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_reflection_describes_the_service(both):
    stub = reflection_pb2_grpc.ServerReflectionStub(both.channel)

    def ask(**fields):
        return next(iter(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**fields)]),
                                                   timeout=10)))

    services = {s.name for s in ask(list_services="").list_services_response.service}
    assert {"normserve.v1.GenerationService", "grpc.health.v1.Health"} <= services
    found = ask(file_containing_symbol="normserve.v1.GenerationService").file_descriptor_response
    assert found.file_descriptor_proto
    assert {m.name for m in pb.DESCRIPTOR.services_by_name["GenerationService"].methods} == METHODS


# --- folders without a tokenizer

def test_a_folder_without_a_tokenizer_serves_ids_and_says_what_text_needs(both):
    answer = both.generate("bare", [3, 4, 5], 6, ignore_eos=True)
    assert len(answer.token_ids) == 6 and answer.text == ""
    pair = pb.ScoreRequest(model="bare")
    pair.items.add().text = "some text"
    ids = pb.DetokenizeRequest(model="bare")
    ids.token_ids.ids.extend([3, 4])
    for call in (lambda: both.generate("bare", "some text", 3), lambda: both.stream("bare", "some text", 3),
                 lambda: both.generate("bare", [3], 3, stop_strings=["x"]), lambda: both.stub.Score(pair),
                 lambda: both.stub.Tokenize(pb.TokenizeRequest(model="bare", text="x")),
                 lambda: both.stub.Detokenize(ids)):
        code, details = status_of(call)
        assert code == Code.FAILED_PRECONDITION, details
        assert "tokenizer" in details and "bare" in details


# --- text

def test_tokenize_and_detokenize_are_inverse(both):
    for text in ("In the beginning", " leading space", "two  spaces\n\ttabs", "caf\u00e9 \u6f22\u5b57 \U0001F600", ""):
        tokens = both.stub.Tokenize(pb.TokenizeRequest(model="bhyt", text=text, add_special_tokens=False), timeout=10)
        assert len(tokens.pieces) == len(tokens.ids)
        request = pb.DetokenizeRequest(model="bhyt")
        request.token_ids.ids.extend(tokens.ids)
        assert both.stub.Detokenize(request, timeout=10).text == text


def test_joined_deltas_are_the_decoded_ids(both):
    for prompt in ("And God said", "The", "Thou shalt"):
        joined = both.stream("bhyt", prompt, 60, temperature=1.2, seed=3, ignore_eos=True)
        request = pb.DetokenizeRequest(model="bhyt")
        request.token_ids.ids.extend(joined.token_ids)
        assert both.stub.Detokenize(request, timeout=10).text == joined.text


def test_special_tokens_are_in_the_text_only_when_asked(both):
    hidden = both.generate("bhyt", "And", 2, logit_bias={1: 100.0})
    shown = both.generate("bhyt", "And", 2, logit_bias={1: 100.0}, skip_special_tokens=False)
    assert hidden.finish_reason == shown.finish_reason == pb.FINISH_REASON_EOS
    assert list(hidden.token_ids) == list(shown.token_ids) == [1]
    assert hidden.text == "" and shown.text == "<|eos|>"
    assert both.generate("bhyt", "And", 5, omit_text=True).text == ""


def test_stop_tokens_end_the_answer_and_are_returned(both):
    free = both.generate("bhyt", "In the beginning", 20)
    stop = free.token_ids[4]
    cut = both.generate("bhyt", "In the beginning", 20, stop_token_ids=[stop])
    end = list(free.token_ids).index(stop) + 1
    assert list(cut.token_ids) == list(free.token_ids)[:end]
    assert cut.finish_reason == pb.FINISH_REASON_STOP_TOKEN and cut.stop_match == str(stop)


def test_defaults_are_greedy_and_from_generation_config(tmp_path):
    folder = checkpoints.llama(tmp_path / "m", vocab=2048, tokenizer=True)
    (folder / "generation_config.json").write_text(json.dumps(
        {"do_sample": True, "temperature": 5.0, "top_k": 40, "max_new_tokens": 7, "eos_token_id": [1, 9]}))
    with Server({"m": folder}, "--kv-cache-tokens", 512) as server:
        drawn = [server.generate("m", [5, 6], ignore_eos=True) for _ in range(3)]
        assert {len(a.token_ids) for a in drawn} == {7}
        assert len({tuple(a.token_ids) for a in drawn}) > 1, "do_sample was not followed"
        greedy = [server.generate("m", [5, 6], temperature=0, ignore_eos=True) for _ in range(2)]
        assert list(greedy[0].token_ids) == list(greedy[1].token_ids)
        ended = server.generate("m", [5, 6], 5, logit_bias={9: 100.0})
        assert list(ended.token_ids) == [9] and ended.finish_reason == pb.FINISH_REASON_EOS


# --- scoring

def test_score_takes_text_pairs_and_ids_alike(both):
    def ids(text, add=None):
        return list(both.stub.Tokenize(pb.TokenizeRequest(model="bhyt", text=text, add_special_tokens=add),
                                       timeout=10).ids)

    request = pb.ScoreRequest(model="bhyt", top_logprobs=2)
    pair = request.items.add().text_pair
    pair.context, pair.continuation = "In the beginning", " God created the heaven"
    request.items.add().text = "In the beginning God created the heaven"
    whole, context = ids("In the beginning God created the heaven"), ids("In the beginning")
    request.items.add().token_ids.ids.extend(whole)
    tokens = request.items.add().token_pair
    tokens.context.ids.extend(whole[:len(context)])
    tokens.continuation.ids.extend(whole[len(context):])
    text_pair, text, by_ids, id_pair = both.stub.Score(request, timeout=30).items
    assert [t.token_id for t in text.tokens] == whole
    assert text.tokens == by_ids.tokens and not text.tokens[0].HasField("logprob")
    assert text.scored_tokens == len(whole) - 1
    assert text_pair.tokens == id_pair.tokens
    assert list(id_pair.tokens) == list(by_ids.tokens)[len(context):]
    for item in (text_pair, text):
        scored = [t for t in item.tokens if t.HasField("logprob")]
        assert item.sum_logprob == pytest.approx(sum(t.logprob for t in scored), abs=1e-9)
        assert item.all_argmax == all(t.is_argmax for t in scored)
        assert all(t.is_argmax == (t.top_logprobs.token_ids[0] == t.token_id) for t in scored)
    assert text_pair.usage.prompt_tokens == len(whole) and text_pair.usage.completion_tokens == 0


def test_held_out_text_has_the_recorded_likelihood_order(both):
    """English scores above its own words shuffled."""
    english = "And the LORD spake unto Moses, saying, Speak unto the children of Israel"
    shuffled = "Israel of children the unto Speak saying, Moses, unto spake LORD the And"
    request = pb.ScoreRequest(model="bhyt")
    for text in (english, shuffled):
        request.items.add().text = text
    first, second = both.stub.Score(request, timeout=30).items
    assert first.sum_logprob / first.scored_tokens > second.sum_logprob / second.scored_tokens + 1


def test_faulty_score_requests_are_refused_by_name(both):
    empty = pb.ScoreRequest(model="bhyt")
    many = wire.score_ids("bhyt", [[1, 2]] * 1025)
    outside = wire.score_ids("bhyt", [[1, 2048]])
    nothing = pb.ScoreRequest(model="bhyt")
    nothing.items.add()
    long = wire.score_ids("bhyt", [[5] * 600])
    for request, word in ((empty, "items"), (many, "items"), (outside, "2048"), (nothing, "items"), (long, "512"),
                          (wire.score_ids("bhyt", [[1, 2]], top=2049), "top_logprobs")):
        code, details = status_of(both.stub.Score, request, timeout=20)
        assert code == Code.INVALID_ARGUMENT and word in details, details


# --- request ids, logs, metrics

def test_the_request_id_is_returned_and_logged(both):
    given = both.stub.Generate.with_call(wire.generate("bhyt", "And", 1), metadata=[("x-request-id", "abc-123")])[1]
    assert dict(given.initial_metadata())["x-request-id"] == "abc-123"
    made = [dict(both.stub.Generate.with_call(wire.generate("bhyt", "And", 1))[1].initial_metadata())["x-request-id"]
            for _ in range(2)]
    assert made[0] != made[1] and all(made)
    stream = both.stub.GenerateStream(wire.generate("bhyt", "And", 1), metadata=[("x-request-id", "stream-7")])
    assert dict(stream.initial_metadata())["x-request-id"] == "stream-7"
    list(stream)
    for name in ("abc-123", "stream-7"):  # the line is written after the answer
        wait_until(lambda n=name: f"request_id={n} " in both.log(), f"a log line of {name}")


def test_prompts_are_in_the_log_only_when_asked(demo_models):
    word = "zebra-unlikely-word"
    for flags, shown in (((), False), (("--log-prompts",), True)):
        with Server({"bhyt": demo_models["bhyt"]}, "--kv-cache-tokens", 512, *flags) as server:
            server.generate("bhyt", f"Behold the {word}", 2)
            wait_until(lambda s=server: "event=request " in s.log(), "the request's log line")
            assert (word in server.log()) == shown


def test_log_lines_are_structured(both):
    both.generate("bhyt", "And", 1)
    lines = both.log().splitlines()
    assert all(re.match(r"time=\S+Z level=(debug|info|warning|error) event=\S+", line) for line in lines[1:]), lines


def test_metrics_have_the_promised_series_and_close(both):
    before = both.metrics()
    for _ in range(3):
        both.generate("bhyt", "In the beginning God created the heaven and the earth. And the earth was", 5,
                      ignore_eos=True)
    both.stub.Score(wire.score_ids("bhyt", [[1, 2, 3], [4, 5]]), timeout=10)
    both.idle()
    after = both.metrics()

    def grew(name, **labels):
        return after.sum(name, model="bhyt", **labels) - before.sum(name, model="bhyt", **labels)

    assert grew("normserve_requests_received_total") == 5
    assert grew("normserve_requests_ended_total", reason="length") == 3
    assert grew("normserve_requests_ended_total", reason="scored") == 2
    assert grew("normserve_generated_tokens_total") == 15
    for histogram, count in (("time_to_first_token_seconds", 3), ("inter_token_latency_seconds", 12)):
        assert grew(f"normserve_{histogram}_count") == count, histogram
    assert grew("normserve_request_duration_seconds_count") == 5
    for histogram in ("request_queue_seconds", "request_prefill_seconds", "request_decode_seconds", "step_batch_size",
                      "step_tokens"):
        assert grew(f"normserve_{histogram}_count") > 0, histogram
    assert after.in_flight() == 0
    text = both.metrics_text()
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_duration_seconds"):
        edges = [float(e) for e in re.findall(rf'normserve_{name}_bucket{{.*?le="([\d.e+-]+)"', text)]
        assert min(edges) <= 0.001 and max(edges) >= 600
    blocks = {state: after.sum("normserve_kv_blocks", model="bhyt", state=state)
              for state in ("used", "cached", "free")}
    assert blocks["used"] == 0 and sum(blocks.values()) > 0
    assert after.sum("normserve_build_info") >= 1


def test_prefix_hits_are_counted(both):
    prompt = [7 + i % 200 for i in range(100)]
    first = both.generate("bhyt", prompt, 2, ignore_eos=True)
    before = both.metrics()
    second = both.generate("bhyt", prompt, 2, ignore_eos=True)
    after = both.metrics()
    assert first.usage.cached_tokens == 0 and second.usage.cached_tokens == 96  # whole blocks of 32
    name = "normserve_prefix_cache_hit_tokens_total"
    assert after.sum(name, model="bhyt") - before.sum(name, model="bhyt") == 96
    cached = after.sum("normserve_prompt_tokens_total", model="bhyt", source="cached")
    assert cached - before.sum("normserve_prompt_tokens_total", model="bhyt", source="cached") == 96


def test_a_string_that_is_not_utf8_is_refused_and_logs_nothing_of_protobufs(demo):
    """Else any client could fill the log, in a format that nobody parses."""
    call = demo.channel.unary_unary("/normserve.v1.GenerationService/Generate")  # bytes as they are
    not_utf8 = b"\x0a\x04bhyt\x12\x02\xff\xfe"  # model: "bhyt", text: ff fe
    code, details = status_of(call, not_utf8, timeout=10)
    assert code == Code.INVALID_ARGUMENT and "not a valid normserve.v1.GenerateRequest" in details, details
    assert "libprotobuf" not in demo.log()
