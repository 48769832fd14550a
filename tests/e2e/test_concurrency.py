# SPDX-License-Identifier: Apache-2.0
"""One numeric path: a request's tokens and log-probabilities are the same to the last bit whatever else the server
does, and nothing is left behind by requests that go away."""
import os
import pathlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import wire
from server import DEMO, Server, wait_until

BHYT, SIMPLEGPT = DEMO / "bhyt-kjv", DEMO / "simplegpt-kjv"
TEXT = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness "
        "was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let "
        "there be light: and there was light. And God saw the light, that it was good: and God divided the light from "
        "the darkness. ") * 3


def mixed_requests(model, count=64):
    """Greedy and seeded, short and long, with and without penalties and stop strings."""
    rng = random.Random(5)
    requests = []
    for i in range(count):
        start = rng.randrange(0, 200)
        prompt = TEXT[start:start + rng.choice([3, 20, 90, 400, 700])]
        fields = {"logprobs": True, "top_logprobs": rng.choice([0, 0, 3])}
        if i % 2:
            fields.update(temperature=rng.choice([0.3, 0.8, 1.5]), seed=rng.randrange(2**63),
                          top_k=rng.choice([0, 5, 50]), top_p=rng.choice([1.0, 0.9]), min_p=rng.choice([0.0, 0.05]))
        if i % 5 == 0:
            fields.update(repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1)
        if i % 7 == 0:
            fields.update(stop_strings=[", and"])
        requests.append(wire.generate(model, prompt, rng.choice([1, 8, 24, 40]), **fields))
    return requests


def at_once(server, requests):
    """Streams all of them together; answers in the order of `requests`."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda r: wire.Joined(server.stub.GenerateStream(r, timeout=240)), requests))


@pytest.fixture(scope="module")
def alone():
    """Each request by itself on a server that reuses nothing: what everything else is compared with."""
    with Server({"bhyt": BHYT, "simplegpt": SIMPLEGPT}, "--no-prefix-cache") as server:
        return {model: [wire.essence(server.stub.Generate(r, timeout=120)) for r in mixed_requests(model)]
                for model in ("bhyt", "simplegpt")}


@pytest.mark.parametrize("model,folder", [("bhyt", BHYT), ("simplegpt", SIMPLEGPT)])
@pytest.mark.parametrize("flags", [
    pytest.param((), id="defaults"),
    pytest.param(("--max-step-tokens", 16), id="steps-of-16"),
    pytest.param(("--max-mixed-step-tokens", 12), id="mixed-steps-of-12"),
    pytest.param(("--max-running", 3, "--threads", 1), id="three-at-a-time"),
    pytest.param(("--block-size", 16, "--kv-cache-tokens", 640, "--max-step-tokens", 48), id="small-pool"),
])
def test_64_mixed_streams_equal_the_one_at_a_time_output(alone, model, folder, flags):
    with Server({model: folder}, *flags) as server:
        answers = at_once(server, mixed_requests(model))
        for i, (answer, expected) in enumerate(zip(answers, alone[model], strict=True)):
            assert wire.essence(answer) == expected, f"request {i}"
        server.idle()


@pytest.mark.parametrize("model,folder", [("bhyt", BHYT), ("simplegpt", SIMPLEGPT)])
def test_preempted_requests_give_the_output_of_undisturbed_ones(model, folder):
    """Sixteen requests that grow to ten blocks each, in a pool of thirty."""
    requests = [wire.generate(model, TEXT[i * 10:i * 10 + 30], 140, logprobs=True, ignore_eos=True,
                              temperature=0.7 * (i % 2), seed=i) for i in range(16)]
    with Server({model: folder}, "--no-prefix-cache") as server:
        expected = [wire.essence(server.stub.Generate(r, timeout=60)) for r in requests]
    for flags in ((), ("--no-prefix-cache",)):
        with Server({model: folder}, "--block-size", 16, "--kv-cache-tokens", 480, *flags) as server:
            answers = at_once(server, requests)
            assert server.metrics().sum("normserve_preemptions_total") > 0, "the pool was not small enough"
            assert [wire.essence(a) for a in answers] == expected
            server.idle()


@pytest.mark.parametrize("model,folder", [("bhyt", BHYT), ("simplegpt", SIMPLEGPT)])
def test_a_prefix_hit_changes_nothing(alone, model, folder):
    with Server({model: folder}, "--block-size", 16) as server:
        requests = mixed_requests(model)[:32]
        first = [server.stub.Generate(r, timeout=120) for r in requests]
        second = [server.stub.Generate(r, timeout=120) for r in requests]
        assert sum(a.usage.cached_tokens for a in second) > 500
        assert any(a.usage.cached_tokens > 0 for a in first), "the prompts share beginnings"
        for answers in (first, second):
            assert [wire.essence(a) for a in answers] == alone[model][:32]


def test_score_gives_the_logprobs_of_generation(demo):
    """Prefill of prompt and output in one pass, against prefill and decode steps."""
    for model in ("bhyt", "simplegpt"):
        prompt = list(demo.stub.Tokenize(wire.pb.TokenizeRequest(model=model, text=TEXT[:300]), timeout=10).ids)
        answer = demo.generate(model, prompt, 60, logprobs=True, ignore_eos=True)
        request = wire.score_ids(model, [(prompt, list(answer.token_ids))])
        item = demo.stub.Score(request, timeout=60).items[0]
        assert [t.logprob for t in item.tokens] == list(answer.token_logprobs)
        assert item.all_argmax and item.scored_tokens == 60
        assert item.sum_logprob == pytest.approx(sum(answer.token_logprobs), abs=1e-9)


def test_streaming_equals_unary(demo):
    for model in ("bhyt", "simplegpt"):
        for request in mixed_requests(model, 16):
            joined = wire.Joined(demo.stub.GenerateStream(request, timeout=120))
            assert wire.essence(joined) == wire.essence(demo.stub.Generate(request, timeout=120))
            assert all(c.finish_reason == 0 and not c.HasField("usage") for c in joined.chunks[:-1])


def test_two_models_at_once_do_not_disturb_each_other(alone, demo):
    requests = mixed_requests("bhyt", 24) + mixed_requests("simplegpt", 24)
    answers = at_once(demo, requests)
    expected = alone["bhyt"][:24] + alone["simplegpt"][:24]
    # mixed_requests draws in order, so the first 24 of 64 are the 24.
    assert [wire.essence(a) for a in answers] == expected


def test_pinned_threads_have_a_cpu_each_and_change_nothing(alone):
    """Two models of one thread each take two CPUs; threads that do not compute may run anywhere."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU alone: nothing to share out")
    request = mixed_requests("bhyt", 1)[0]
    with Server({"bhyt": BHYT, "other": SIMPLEGPT}, "--threads", 1, "--pin-threads") as server:
        assert wire.essence(server.stub.Generate(request, timeout=60)) == alone["bhyt"][0]
        server.stub.Generate(wire.generate("other", TEXT, 1), timeout=60)
        engines, others = {}, []
        for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
            try:
                name, cpus = (task / "comm").read_text().strip(), os.sched_getaffinity(int(task.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread that ended meanwhile
            if name.startswith("eng:"):
                engines[name] = cpus
            else:
                others.append(cpus)
    assert sorted(engines) == ["eng:bhyt", "eng:other"]
    assert [len(cpus) for cpus in engines.values()] == [1, 1] and engines["eng:bhyt"] != engines["eng:other"]
    assert others and all(cpus == allowed for cpus in others)


def test_1000_random_cancels_leave_no_trace(demo_models):
    """Queued, in prefill, in decode, at the last token: gauges at idle, memory bounded, answers unchanged (A4)."""
    with Server({"bhyt": demo_models["bhyt"]}, "--max-running", 8, "--block-size", 16, "--kv-cache-tokens", 2048,
                "--max-step-tokens", 64) as server:
        probe = wire.generate("bhyt", "And it came to pass", 24, logprobs=True)
        clean = wire.essence(server.stub.Generate(probe, timeout=60))
        rng = random.Random(3)
        cancelled, ended = cancel_many(server, rng, 100)  # allocators and threads reach their working size
        server.idle()
        rss = server.rss_bytes()
        more, over = cancel_many(server, rng, 900)
        server.idle()
        metrics = server.metrics()
        assert cancelled + ended + more + over == 1000
        assert cancelled + more > 300, "too few were cancelled to say anything"
        # One that is cancelled at once may never reach the server; one that ends as it is cancelled is a success.
        assert 300 < metrics.ended("cancelled") <= cancelled + more
        assert metrics.ended() == metrics.ended("cancelled") + metrics.ended("length")
        assert server.rss_bytes() - rss < 24 * 2**20, "memory grew over 900 cancels"
        assert wire.essence(server.stub.Generate(probe, timeout=60)) == clean


def cancel_many(server, rng, count):
    """(cancelled, ended by themselves)"""
    outcomes = []
    lock = threading.Lock()

    def one(delay, tokens, length):
        call = server.stub.GenerateStream(wire.generate("bhyt", TEXT[:length], tokens, ignore_eos=True), timeout=120)
        timer = threading.Timer(delay, call.cancel)
        timer.start()
        try:
            for _ in call:
                pass
            outcome = "ended"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error
            outcome = "cancelled"
        timer.cancel()
        with lock:
            outcomes.append(outcome)

    with ThreadPoolExecutor(24) as pool:
        for done in [pool.submit(one, rng.choice([0, 0.001, 0.01, 0.05, 0.1, 0.3]) * rng.random() * 2,
                                 rng.choice([1, 2, 30, 200]), rng.choice([5, 100, 800])) for _ in range(count)]:
            done.result()
    return outcomes.count("cancelled"), outcomes.count("ended")


def test_priority_orders_the_queue_and_starves_nobody(long_model):
    """Each call would run for ever, so that its first token says that the one slot was given to it."""
    def stream(server, **extra):
        return server.stub.GenerateStream(wire.generate("m", [5], 16000, ignore_eos=True, **extra), timeout=60)

    with Server({"m": long_model}, "--max-running", 1, "--kv-cache-tokens", 16384) as server:
        running = stream(server)
        next(running)
        calls = {}
        for count, priority in enumerate((-100, 0, 100), 1):
            calls[priority] = stream(server, priority=priority)
            wait_until(lambda n=count: server.metrics().sum("normserve_requests_waiting") == n, f"{count} waiting")
        for waiting, priority in ((2, 100), (1, 0), (0, -100)):
            running.cancel()
            running = calls[priority]
            next(running)
            assert server.metrics().sum("normserve_requests_waiting") == waiting
        running.cancel()
