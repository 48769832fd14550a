# SPDX-License-Identifier: Apache-2.0
"""Faults of other servers that must be impossible here, each named after what it guards.

This file: queues, slots, blocks, deadlines. All through gRPC, against the real binary.
"""
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import wire
from server import CLIENT, Server, status_of, wait_until

Code = grpc.StatusCode


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
    with Server({"m": long_model}, "--max-running", 1, "--max-waiting-tokens", 1000,
                "--kv-cache-tokens", 16384) as server:
        running = slow_stream(server)
        next(running)
        waiting = server.stub.Generate.future(wire.generate("m", [5] * 900, 1))
        wait_until(lambda: server.metrics().sum("normserve_requests_waiting") == 1, "one waiting")
        code, details = status_of(server.generate, "m", [5] * 200, 1)
        assert code == Code.RESOURCE_EXHAUSTED and "1000" in details
        running.cancel()
        assert len(waiting.result(timeout=60).token_ids) == 1


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
