# SPDX-License-Identifier: Apache-2.0
"""The command line of normserve: help, check, inspect, config file, ready file, signals, and bad values."""
import fcntl
import json
import re
import signal
import socket
import threading
import time

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

import checkpoints
import wire
from server import DEMO, Server, run, status_of, wait_until

BHYT = DEMO / "bhyt-kjv"
FLAGS = ["--model", "--listen", "--metrics-listen", "--device", "--memory-fraction", "--attention", "--dependent-launch", "--batch-invariant", "--dtype", "--ready-file", "--config", "--norm-type",
         "--bhyt-seq-len", "--fold", "--block-size", "--kv-cache-dtype", "--kv-cache-tokens", "--kv-cache-memory", "--max-step-tokens",
         "--max-mixed-step-tokens", "--max-running", "--max-waiting", "--max-waiting-tokens", "--no-prefix-cache",
         "--default-max-new-tokens", "--threads", "--pin-threads", "--simd", "--drain-timeout", "--log-level", "--log-prompts",
         "--check", "--version"]


def test_help_lists_every_flag_with_its_default_and_unit():
    result = run("--help")
    assert result.returncode == 0 and result.stderr == ""
    text = result.stdout
    for flag in FLAGS:
        assert re.search(rf"^\s+(-\w,)?{flag}\b", text, re.M), flag
    assert "inspect" in text
    for flag, unit, default in (("--block-size", "TOKENS", "32"), ("--max-running", "REQUESTS", "64"),
                                ("--kv-cache-memory", "BYTES", "default"), ("--drain-timeout", "SECONDS", "30"),
                                ("--dtype", "TYPE", "auto"), ("--memory-fraction", "SHARE", "0.9"), ("--listen", "HOST:PORT", "127.0.0.1")):
        entry = re.search(rf"^\s+{flag}\b.*?(?=^\s+--|\Z)", text, re.M | re.S)[0]
        assert unit in entry and default in entry, entry


def test_version():
    result = run("--version")
    assert result.returncode == 0 and re.search(r"\d+\.\d+\.\d+", result.stdout)


@pytest.mark.parametrize("arguments,said", [
    (["--model", "noequals"], ["--model", "noequals"]),
    (["--model", "a="], ["--model"]),
    (["--model", f"a={BHYT}", "--model", f"a={BHYT}"], ["--model", "'a'"]),
    ([], ["--model"]),
    (["--model", f"a={BHYT}", "--dtype", "float8"], ["--dtype", "float8"]),
    (["--model", f"a={BHYT}", "--device", "tpu"], ["--device", "tpu", "cuda:N"]),
    (["--model", f"a={BHYT}", "--device", "cuda:-1"], ["--device", "cuda:-1", "cuda:N"]),
    (["--model", f"a={BHYT}", "--memory-fraction", "1.5"], ["--memory-fraction", "1.5"]),
    (["--model", f"a={BHYT}", "--block-size", "20"], ["--block-size", "20", "16"]),
    (["--model", f"a={BHYT}", "--block-size", "x"], ["--block-size"]),
    (["--model", f"a={BHYT}", "--max-running", "0"], ["--max-running"]),
    (["--model", f"a={BHYT}", "--max-running", "-3"], ["--max-running"]),
    (["--model", f"a={BHYT}", "--kv-cache-tokens", "many"], ["--kv-cache-tokens", "many"]),
    (["--model", f"a={BHYT}", "--kv-cache-memory", "3 parsecs"], ["--kv-cache-memory"]),
    (["--model", f"a={BHYT}", "--kv-cache-memory", "1G", "--kv-cache-tokens", "512"], ["--kv-cache"]),
    (["--model", f"a={BHYT}", "--bhyt-seq-len", "b=10"], ["--bhyt-seq-len", "'b'"]),
    (["--model", f"a={BHYT}", "--bhyt-seq-len", "a=0"], ["--bhyt-seq-len"]),
    (["--model", f"a={BHYT}", "--norm-type", "a"], ["--norm-type"]),
    (["--model", f"a={BHYT}", "--listen", "nowhere"], ["--listen", "nowhere", "HOST:PORT"]),
    (["--model", f"a={BHYT}", "--listen", "127.0.0.1:99999"], ["--listen", "99999", "65535"]),
    (["--model", f"a={BHYT}", "--metrics-listen", "127.0.0.1:-1"], ["--metrics-listen", "-1"]),
    (["--model", f"a={BHYT}", "--fold", "maybe"], ["--fold", "maybe"]),
    (["--model", f"a={BHYT}", "--nonsense"], ["--nonsense"]),
    (["--modle", f"a={BHYT}"], ["--modle", "did you mean --model?"]),
    (["--model", f"a={BHYT}", "--threads", "abc"], ["--threads", "abc", "4096"]),
    (["--model", f"bad name={BHYT}"], ["--model", "bad name", "128"]),
    (["--model", f"a={BHYT}", "--config", "/does/not/exist.yaml"], ["exist.yaml"]),
    (["inspect"], ["DIR"]),
])
def test_a_bad_value_is_refused_in_one_sentence_that_names_it(arguments, said):
    result = run(*arguments)
    assert result.returncode == 2, result
    assert result.stdout == "" and result.stderr.startswith("normserve: ")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in said:
        assert word in result.stderr, result.stderr


@pytest.mark.parametrize("flags,said", [
    (["--model", "a=/does/not/exist"], ["/does/not/exist"]),
    (["--model", f"a={BHYT}", "--norm-type", "a=bogus"], ["--norm-type", "bogus", "allowed", "rms"]),
    (["--model", f"a={BHYT}", "--kv-cache-tokens", "2147483647"], ["--kv-cache-tokens", "TiB", "at most"]),
    (["--model", f"a={BHYT}", "--kv-cache-memory", "900T"], ["KV", "memory"]),
])
def test_what_only_loading_can_find_ends_in_an_error(flags, said):
    # Free ports, whatever else runs on this machine.
    result = run(*flags, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    assert result.returncode not in (0, 2) and result.returncode > 0, result
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("normserve: ")
    for word in said:
        assert word.lower() in last.lower(), last


def test_a_port_in_use_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        for flags in (["--listen", address, "--metrics-listen", "127.0.0.1:0"],
                      ["--listen", "127.0.0.1:0", "--metrics-listen", address]):
            result = run("--model", f"a={BHYT}", "--kv-cache-tokens", 512, *flags)
            assert result.returncode > 0 and address in result.stderr, result


def test_check_says_what_it_would_serve_and_ends():
    result = run("--check", "--model", f"one={BHYT}", "--model", f"two={DEMO / 'simplegpt-kjv'}",
                 "--kv-cache-tokens", 1024)
    assert result.returncode == 0, result
    for word in ("one", "two", "bhyt", "SimpleGPT", "1024", "float32", "all checks passed; would serve"):
        assert word in result.stdout, result.stdout


def test_inspect_as_json_and_as_a_table():
    result = run("inspect", BHYT, "--json")
    assert result.returncode == 0, result
    info = json.loads(result.stdout)
    assert info["architecture"] == "llama" and info["norm_type"] == "bhyt"
    assert 4.6e6 < info["parameter_count"] < 4.7e6
    assert info["layer_count"] == 6 and info["hidden_size"] == 256 and info["vocab_size"] == 2048
    assert info["max_context_tokens"] == 512 and info["tokenizer"] == "tokenizer.json"
    assert {n["layer"] for n in info["norms"] if n["layer"] is not None} == set(range(6))
    sites = {n["site"] for n in info["norms"]}
    assert {"attn_in", "mlp_in", "final"} <= sites
    carried = [n["norm"] for n in info["norms"] if n["site"] == "mlp_in"]
    assert len(carried) == 6 and all("carried" in text and "tanh" in text for text in carried)
    assert info["kv_bytes_per_token"] == 6 * 2 * 2 * 64 * 4
    table = run("inspect", BHYT)
    assert table.returncode == 0 and str(info["parameter_count"]) in table.stdout
    bogus = run("inspect", BHYT, "--norm-type", "bogus")
    assert bogus.returncode == 1 and "config.json" not in bogus.stderr
    assert '--norm-type is "bogus"; allowed for architecture llama: rms, bhyt' in bogus.stderr, bogus.stderr
    gone = run("inspect", "/does/not/exist")
    assert gone.returncode == 1 and "/does/not/exist" in gone.stderr


def test_inspect_says_what_was_folded():
    """The demo model's weights are bfloat16: auto does not fold, on does."""
    auto = json.loads(run("inspect", BHYT, "--json").stdout)["folded"]
    on = json.loads(run("inspect", BHYT, "--json", "--fold", "on").stdout)["folded"]
    assert len(on) > len(auto)


def test_flags_from_a_yaml_file(tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text(yaml.safe_dump({"model": [f"one={BHYT}", f"two={BHYT}"], "kv-cache-tokens": 1024,
                                      "block-size": 16, "no-prefix-cache": True, "dtype": "bfloat16"}))
    with Server({}, "--config", config) as server:
        models = server.stub.ListModels(wire.pb.ListModelsRequest(), timeout=10).models
        assert {m.name for m in models} == {"one", "two"}
        assert {m.dtype for m in models} == {"bfloat16"} and {m.kv_cache_tokens for m in models} == {1024}
    with Server({}, "--config", config, "--dtype", "float32") as server:  # the command line wins
        models = server.stub.ListModels(wire.pb.ListModelsRequest(), timeout=10).models
        assert {m.dtype for m in models} == {"float32"}
    config.write_text(yaml.safe_dump({"model": f"one={BHYT}", "kv-cache-memory": "64M"}))
    for flags, outcome in ((("--kv-cache-tokens", "2048"), "KV cache 2048 tokens"),  # also over what excludes it
                           (("--kv-cache-memory", "6M"), "KV cache 1024 tokens")):
        assert outcome in run("--config", config, *flags, "--check").stdout
    config.write_text("model: [one=x]\nbogus-key: 3\n")
    result = run("--config", config)
    assert result.returncode == 2 and "bogus-key" in result.stderr
    config.write_text("model: [unclosed\n")
    result = run("--config", config)
    assert result.returncode == 2 and "line 2" in result.stderr


def test_the_ready_file_appears_when_serving_and_names_the_ports():
    with Server({"a": BHYT}, "--kv-cache-tokens", 512) as server:
        assert set(server.ready) == {"grpc_port", "metrics_port"}
        assert server.serving() and server.serving("a")
        assert "normserve_build_info" in server.metrics_text()


def test_until_the_last_model_is_loaded_nothing_is_served_and_nothing_says_so(tmp_path):
    """A lease on a file of the second model holds up whoever opens it: the loading stops there."""
    first, second = (checkpoints.llama(tmp_path / name) for name in ("first", "second"))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # how a lease's holder hears that somebody waits
    with open(second / "config.json") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases on the file system of {tmp_path}: {error}")
        with Server({"first": first, "second": second}, "--kv-cache-tokens", 512, wait=False) as server:
            wait_until(lambda: "event=model_loaded model=first" in server.log(), "the first model", seconds=60)
            health = health_pb2_grpc.HealthStub(server.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service="first"), timeout=120)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            for name in ("", "first", "second"):
                assert server.health(name) == health_pb2.HealthCheckResponse.NOT_SERVING
            for name in ("first", "second"):
                code, details = status_of(server.generate, name, [3], 1)
                assert code == grpc.StatusCode.UNAVAILABLE and "loading" in details, details
            assert not server.ready_file.exists() and "event=serving" not in server.log()
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            listening = server.ready
            server.wait_ready()
            assert server.ready == listening
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
            assert all(server.serving(name) for name in ("", "first", "second"))
            assert len(server.generate("second", [3], 2, ignore_eos=True).token_ids) == 2


def test_a_ready_file_that_cannot_be_written_is_refused_before_loading(tmp_path):
    for more in ((), ("--check",)):
        result = run("--model", f"a={BHYT}", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                     "--ready-file", tmp_path / "no-such-folder/ready.json", *more)
        assert result.returncode == 1 and "--ready-file" in result.stderr and "cannot be written" in result.stderr
        assert "model_loaded" not in result.stderr + result.stdout
    result = run("--model", f"a={BHYT}", "--ready-file", tmp_path / "ready.json", "--check")
    assert result.returncode == 0 and not list(tmp_path.iterdir())


def test_an_unknown_simd_target_is_answered_with_those_that_are_there():
    result = run("--model", f"a={BHYT}", "--simd", "avx9", "--check")
    assert result.returncode == 1 and "AVX9" in result.stderr
    assert re.search(r"allowed: .*AVX2.*SSE4", result.stderr)


def test_a_stale_ready_file_is_removed_before_loading(tmp_path):
    ready = tmp_path / "ready.json"
    ready.write_text('{"grpc_port": 1, "metrics_port": 1}')
    result = run("--model", "a=/does/not/exist", "--ready-file", ready, "--listen", "127.0.0.1:0",
                 "--metrics-listen", "127.0.0.1:0")
    assert result.returncode > 0 and not ready.exists()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_drains_what_is_in_flight(long_model, sig):
    with Server({"m": long_model}, "--kv-cache-tokens", 8192) as server:
        stream = server.stub.GenerateStream(wire.generate("m", [5, 6], 600, ignore_eos=True), timeout=120)
        joined = wire.Joined([next(stream)])
        stopper = threading.Thread(target=lambda: setattr(server, "code", server.stop(sig)))
        stopper.start()
        for chunk in stream:
            joined.add(chunk)
        assert len(joined.token_ids) == 600
        assert joined.finish_reason == wire.pb.FINISH_REASON_MAX_NEW_TOKENS
        stopper.join()
        assert server.code == 0


def test_while_draining_new_requests_are_unavailable_and_health_says_not_serving(long_model):
    with Server({"m": long_model}, "--kv-cache-tokens", 16384) as server:
        stream = server.stub.GenerateStream(wire.generate("m", [5, 6], 4000, ignore_eos=True), timeout=120)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        while True:
            code, _ = _try(server)
            if code == grpc.StatusCode.UNAVAILABLE:
                break
            assert time.monotonic() < end, "new requests are still taken"
        stream.cancel()
        assert server.process.wait(30) == 0


def _try(server):
    try:
        server.generate("m", [5], 1, timeout=5)
        return None, ""
    except grpc.RpcError as error:
        return error.code(), error.details()


def test_after_the_drain_timeout_streams_end_with_unavailable(long_model):
    with Server({"m": long_model}, "--kv-cache-tokens", 16384, "--drain-timeout", 1) as server:
        stream = server.stub.GenerateStream(wire.generate("m", [5, 6], 16000, ignore_eos=True), timeout=120)
        next(stream)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code, _ = status_of(list, stream)
        assert code == grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(30) == 0
        assert time.monotonic() - start < 10


def test_norm_type_flag_serves_what_a_config_cannot_say(tmp_path):
    """LayerNorm Scaling checkpoints look like plain ones; the flag tells (and it changes the numbers)."""
    folder = checkpoints.llama(tmp_path / "lns")
    with Server({"plain": folder, "lns": folder}, "--norm-type", "lns=lns", "--kv-cache-tokens", 512) as server:
        info = server.stub.GetModel(wire.pb.GetModelRequest(model="lns"), timeout=10)
        assert info.norm_type == "lns"
        answers = [server.generate(m, [3, 4, 5], 8, ignore_eos=True, logprobs=True) for m in ("plain", "lns")]
        assert list(answers[0].token_logprobs) != list(answers[1].token_logprobs)
