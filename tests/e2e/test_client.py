# SPDX-License-Identifier: Apache-2.0
"""normserve-client against the real server."""
import json
import math
import re
import resource
import signal
import subprocess

import pytest

import checkpoints
import wire
from server import CLIENT, DEMO, Server, wait_until

pytestmark = pytest.mark.skipif(not CLIENT.exists(), reason=f"no client binary at {CLIENT}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.llama(tmp_path_factory.mktemp("bare") / "m")
    with Server({"bhyt": DEMO / "bhyt-kjv", "bare": folder}) as running:
        yield running


def client(server, *arguments, stdin=None, timeout=120):
    return subprocess.run([str(CLIENT), arguments[0], "--target", server.address, *map(str, arguments[1:])],
                          capture_output=True, text=True, timeout=timeout, input=stdin, check=False)


def test_generate_prints_the_text_that_the_server_sends(server):
    expected = server.generate("bhyt", "In the beginning", 20).text
    prompt = ["--model", "bhyt", "-n", 20]
    for result in (client(server, "generate", "In the beginning", *prompt),
                   client(server, "generate", "In the beginning", "--unary", *prompt),
                   client(server, "generate", *prompt, stdin="In the beginning"),
                   client(server, "generate", "--file", "-", *prompt, stdin="In the beginning")):
        assert result.returncode == 0, result
        assert result.stdout == expected + "\n" and result.stderr == ""


def test_generate_json_has_everything(server, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("And God said")
    result = client(server, "generate", "--model", "bhyt", "--file", file, "-n", 6, "--json", "--top-logprobs", 3,
                    "--temperature", 0.9, "--seed", 5, "--ignore-eos")
    assert result.returncode == 0, result
    got = json.loads(result.stdout)
    expected = server.generate("bhyt", "And God said", 6, temperature=0.9, seed=5, top_logprobs=3, ignore_eos=True)
    assert got["text"] == expected.text and got["token_ids"] == list(expected.token_ids)
    assert got["token_logprobs"] == pytest.approx(list(expected.token_logprobs), abs=0)
    assert [t["token_ids"] for t in got["top_logprobs"]] == [list(t.token_ids) for t in expected.top_logprobs]
    assert got["finish_reason"] == "max_new_tokens" and got["seed"] == 5
    assert got["usage"]["completion_tokens"] == 6


def test_generate_without_a_tokenizer_prints_ids(server):
    expected = server.generate("bare", [3, 4], 5, ignore_eos=True)
    result = client(server, "generate", "--model", "bare", "--token-ids", "3,4", "-n", 5, "--ignore-eos")
    assert result.returncode == 0 and result.stdout.split() == [str(i) for i in expected.token_ids]


def test_a_report_that_cannot_be_written_is_named(server):
    result = client(server, "load", "--model", "bhyt", "--requests", 1, "--json-out", "/nobody/here")
    assert result.returncode == 1
    assert "FAILED_PRECONDITION: --json-out: cannot write file '/nobody/here'" in result.stderr


@pytest.mark.parametrize("arguments,code", [
    (["generate", "x", "--model", "nobody"], "NOT_FOUND"),
    (["generate", "x", "--model", "bhyt", "--top-p", "3"], "INVALID_ARGUMENT"),
    (["generate", "--model", "bhyt", "--token-ids", ""], "INVALID_ARGUMENT"),
    (["generate", "x", "--model", "bare"], "FAILED_PRECONDITION"),
    (["generate", "x", "--model", "bhyt", "--json", "--unary", "--top-k", "5", "--min-p", "7"], "INVALID_ARGUMENT"),
    (["generate", "--model", "bhyt", "--file", "/does/not/exist"], "NOT_FOUND"),
    (["score", "x", "--model", "nobody"], "NOT_FOUND"),
    (["load", "--model", "nobody", "--requests", "3"], "NOT_FOUND"),
    (["load", "--model", "bhyt"], "INVALID_ARGUMENT"),
])
def test_errors_name_the_code_and_end_with_1(server, arguments, code):
    result = client(server, *arguments)
    assert result.returncode == 1 and result.stdout.strip() == ""
    assert result.stderr.startswith(f"error: {code}: ") and len(result.stderr.splitlines()) == 1


def test_the_help_shows_flags_as_they_are_written():
    result = subprocess.run([str(CLIENT), "load", "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert re.search(r"^ *--no-progress +draw", result.stdout, re.M) and "{false}" not in result.stdout


def test_an_absent_server_is_unavailable():
    result = subprocess.run([str(CLIENT), "generate", "x", "--target", "127.0.0.1:1"], capture_output=True, text=True,
                            timeout=60, check=False)
    assert result.returncode == 1 and result.stderr.startswith("error: UNAVAILABLE: ")


@pytest.mark.parametrize("arguments", [["generate", "--nonsense"], ["generate", "x", "--temperature", "warm"], [],
                                       ["load", "--arrival", "sometimes"], ["dance"]])
def test_a_faulty_command_line_ends_with_2(arguments):
    result = subprocess.run([str(CLIENT), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2 and result.stderr


def test_score_text_and_pairs(server, tmp_path):
    request = wire.pb.ScoreRequest(model="bhyt")
    request.items.add().text = "In the beginning God created"
    item = server.stub.Score(request, timeout=20).items[0]
    result = client(server, "score", "In the beginning God created", "--model", "bhyt", "--json")
    assert result.returncode == 0, result
    got = json.loads(result.stdout)
    assert got["sum_logprob"] == pytest.approx(item.sum_logprob, abs=1e-12)
    assert got["perplexity"] == pytest.approx(math.exp(-item.sum_logprob / item.scored_tokens))
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"context": "In the beginning", "continuation": " God created"}\n'
                     '{"context": [5, 6], "continuation": [7, 8, 9]}\n{"token_ids": [5, 6, 7]}\n' * 30)
    result = client(server, "score", "--pairs", pairs, "--model", "bhyt", "--json", "--batch", 7)
    assert result.returncode == 0, result
    items = json.loads(result.stdout)["items"]
    assert len(items) == 90 and items[0] == {**items[3], "usage": items[0]["usage"]}
    assert [len(i["tokens"]) for i in items[1:3]] == [3, 3]
    table = client(server, "score", "--pairs", pairs, "--model", "bhyt")
    assert table.returncode == 0 and "perplexity" in table.stdout and len(table.stdout.splitlines()) == 92


def test_health_asks_the_server_and_each_model(server):
    for arguments in ([], ["--model", "bhyt"]):
        result = client(server, "health", *arguments)
        assert result.returncode == 0 and result.stdout == "SERVING\n" and result.stderr == ""
    result = client(server, "health", "--model", "nobody")
    assert result.returncode == 1 and result.stderr.startswith("error: NOT_FOUND: ")
    result = subprocess.run([str(CLIENT), "health", "--target", "127.0.0.1:1"], capture_output=True, text=True,
                            timeout=60, check=False)
    assert result.returncode == 1 and result.stderr.startswith("error: UNAVAILABLE: ")


def load(server, *arguments):
    result = client(server, "load", "--model", "bhyt", "--json", *arguments)
    assert result.returncode == 0, result
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_load_in_a_closed_loop_counts_what_the_server_counts(server):
    server.idle()
    before = server.metrics()
    report = load(server, "--requests", 40, "-c", 8, "--warmup", 4, "--prompt-tokens", "5:60", "--output-tokens",
                  "3:20")
    server.idle()
    after = server.metrics()
    assert report["requests"] == {"offered": 40, "sent": 40, "unsent": 0, "succeeded": 40, "failed": 0}
    assert report["valid"] and report["errors"] == {}
    assert after.ended("length") - before.ended("length") == 44
    generated = after.sum("normserve_generated_tokens_total") - before.sum("normserve_generated_tokens_total")
    assert 40 * 3 <= report["tokens"]["output"] < generated  # the warm-up's are not in the report
    latency = report["latency_ms"]
    assert latency["time_to_first_token"]["count"] == 40 == latency["end_to_end"]["count"]
    assert latency["inter_token"]["count"] == report["tokens"]["output"] - 40
    for name in ("time_to_first_token", "inter_token", "end_to_end"):
        row = latency[name]
        assert 0 < row["p50"] <= row["p90"] <= row["p95"] <= row["p99"] <= row["max"]
    assert report["requests_per_s"] == pytest.approx(40 / report["seconds"])
    assert report["output_tokens_per_s"] == pytest.approx(report["tokens"]["output"] / report["seconds"])


@pytest.mark.parametrize("arrival", ["constant", "poisson"])
def test_load_in_an_open_loop_keeps_its_rate(server, arrival, tmp_path):
    out = tmp_path / "report.json"
    report = load(server, "--rate", 20, "--arrival", arrival, "--requests", 40, "-c", 0, "--prompt-tokens", 8,
                  "--output-tokens", 2, "--json-out", out, "--lag-limit", 5000)
    assert report["requests"]["sent"] == 40 and report["offered_per_s"] == 20
    assert report["seconds"] > (1.9 if arrival == "constant" else 0.5)
    assert json.loads(out.read_text()) == report


def test_load_from_a_prompt_file(server, tmp_path):
    text = tmp_path / "prompts.txt"
    text.write_text("In the beginning\nAnd God said\n")
    report = load(server, "--prompts", text, "--requests", 6, "-n", 5, "--ignore-eos")
    assert report["tokens"]["output"] == 30
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"text": "In the beginning", "max_new_tokens": 4}\n{"token_ids": [5, 6], "max_new_tokens": 2}\n')
    calls = tmp_path / "calls.jsonl"
    report = load(server, "--prompts", lines, "--requests", 6, "--ignore-eos", "--temperature", 0, "--calls-out", calls)
    assert report["tokens"]["output"] == 18
    rows = [json.loads(line) for line in calls.read_text().splitlines()]
    assert sorted(row["request"] for row in rows) == [0, 0, 0, 1, 1, 1]
    assert {row["status"] for row in rows} == {"OK"}
    for number, length in ((0, 4), (1, 2)):
        of_prompt = [row for row in rows if row["request"] == number]
        assert all(len(row["token_ids"]) == len(row["token_ms"]) == length for row in of_prompt)
        assert len({tuple(row["token_ids"]) for row in of_prompt}) == 1
    for row in rows:
        times = [row["sent_ms"], *row["token_ms"], row["end_ms"]]
        assert 0 <= times[0] and times == sorted(times)
    result = client(server, "load", "--requests", 1, "--calls-out", "/nobody/here", "--model", "bhyt")
    assert result.returncode == 1 and "--calls-out: cannot write file '/nobody/here'" in result.stderr


def test_load_reports_errors_by_code(server):
    result = client(server, "load", "--model", "bhyt", "--requests", 5, "--json", "--prompt-tokens", 600,
                    "--output-tokens", 4)
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["errors"] == {"INVALID_ARGUMENT": 5}
    assert "512" in report["error_examples"]["INVALID_ARGUMENT"]


def test_an_interrupted_load_reports_what_it_has(server):
    server.idle()
    process = subprocess.Popen([str(CLIENT), "load", "--target", server.address, "--model", "bhyt", "--duration", "600",
                                "-c", "2", "--json", "--prompt-tokens", "8", "--output-tokens", "16"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = server.metrics().ended("length")
    wait_until(lambda: server.metrics().ended("length") > ended + 4, "a few requests ended", 30)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    report = json.loads(out)
    assert process.returncode == 1 and "interrupted" in error
    assert report["requests"]["succeeded"] > 3 and not report["valid"] and "interrupted" in report["invalid_reasons"]
    assert set(report["errors"]) <= {"CANCELLED"}
    server.idle()


def test_load_prints_a_table(server):
    result = client(server, "load", "--model", "bhyt", "--requests", 8, "-c", 4, "--prompt-tokens", 8,
                    "--output-tokens", 8)
    assert result.returncode == 0, result
    for word in ("TTFT", "ITL", "E2E", "p50", "p90", "p95", "p99", "max", "throughput"):
        assert word in result.stdout
    assert re.search(r"8 offered, 8 sent, 8 succeeded, 0 failed, 0 unsent", result.stdout)


def test_64_streams_cost_the_client_little(server):
    """Client and server share the machine: the client's own processor time per token stays small."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = load(server, "--requests", 192, "-c", 64, "--prompt-tokens", 8, "--output-tokens", 32)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert report["tokens"]["output"] == 192 * 32
    assert seconds / report["tokens"]["output"] < 500e-6, f"{seconds:.2f} s for {report['tokens']['output']} tokens"
