# SPDX-License-Identifier: Apache-2.0
"""--draft-tokens: guesses change how many steps an answer takes, and nothing else."""
import pytest

import wire
from server import DEMO, Server, run
from test_concurrency import TEXT, at_once, mixed_requests

BHYT = DEMO / "bhyt-kjv"


def counts(server):
    now = server.metrics()
    return (now.sum("normserve_draft_tokens_total"), now.sum("normserve_draft_tokens_accepted_total"),
            now.sum("normserve_step_batch_size_count"), now.sum("normserve_generated_tokens_total"))


def test_answers_are_the_same_alone_and_together():
    # Repeating texts make guesses right, others make them wrong.
    requests = mixed_requests("bhyt", 24) + [
        wire.generate("bhyt", TEXT[:n], 60, logprobs=True, ignore_eos=True) for n in (250, 400, 700)]
    with Server({"bhyt": BHYT}, "--no-prefix-cache") as server:
        want = [wire.essence(server.stub.Generate(r, timeout=120)) for r in requests]
        assert counts(server)[:2] == (0, 0)
    with Server({"bhyt": BHYT}, "--draft-tokens", 5) as server:
        for i, request in enumerate(requests):
            assert wire.essence(wire.Joined(server.stub.GenerateStream(request, timeout=120))) == want[i], f"request {i}"
        drafted, accepted, steps, generated = counts(server)
        assert 0 < accepted < drafted
        assert generated - accepted <= steps < generated  # every right guess saved a step
        for i, answer in enumerate(at_once(server, requests)):
            assert wire.essence(answer) == want[i], f"request {i} among others"
        server.idle()


@pytest.mark.parametrize("value", ["-1", "8", "x"])
def test_values_out_of_range_are_refused(value):
    done = run("--model", f"a={BHYT}", "--draft-tokens", value)
    assert done.returncode == 2 and "--draft-tokens" in done.stderr and "7" in done.stderr
