# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/compare makes of measured times: figures, medians, ratios, Markdown, SVG. No engine is run, but a
fake one through worker.py."""
import argparse
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

COMPARE = pathlib.Path(__file__).resolve().parents[1] / "bench" / "compare"
sys.path.insert(0, str(COMPARE))
import compare  # noqa: E402
import figures  # noqa: E402
import limits  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402

# Two requests: one prompt is in after 1 s, the other after 2 s; the second one ends last.
TIMES = [[1.0, 2.0, 2.5, 3.0, 3.5, 4.0], [2.0, 2.5, 3.0, 3.5, 4.0, 5.0]]


def test_figures_of_a_load():
    result = figures.of_load(2, {"seconds": 5.0, "times": TIMES})
    assert result["tokens/s 2"] == 12 / 5.0
    # From 2 s, when both decode, to 4 s, when the first one ends: four tokens each.
    assert result["decode 2"] == 8 / 2.0
    assert (result["ttft p50 2"], result["ttft p99 2"]) == (1000, 2000)
    assert (result["itl p50 2"], result["itl p99 2"]) == (500, 1000)


def test_decode_alone_is_not_told_where_it_is_too_short():
    assert figures.decode_tokens_per_s([[1.0, 1.5], [1.4, 1.6]]) is None
    assert "decode 1" not in figures.of_load(1, {"seconds": 1.0, "times": [[1.0]]})


@pytest.mark.parametrize("values, share, expected", [
    ([3.0], 0.99, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), (list(range(1, 201)), 0.99, 198), ([2.0, 1.0], 0.0, 1.0),
])
def test_percentile_is_the_nearest_rank(values, share, expected):
    assert figures.percentile(values, share) == expected


def canned_run():
    one = {"normserve:bf16": {"tokens/s 1": 90.0, "tokens/s 8": 200.0, "decode 8": 300.0, "itl p50 8": 20.0,
                              "itl p99 8": 30.0, "ttft p50 8": 900.0, "ttft p99 8": 1800.0, "prefill 128": 700.0,
                              "rss": 512.25, "start": 0.5},
           "normserve:int4": {"tokens/s 1": 180.0, "tokens/s 8": 240.0},
           "llama.cpp:q4_0": {"tokens/s 1": 200.0, "tokens/s 8": 160.0, "prefill 128": 650.0}}
    two = json.loads(json.dumps(one))
    two["llama.cpp:q4_0"]["tokens/s 8"] = 120.0
    three = {"normserve:bf16": {"tokens/s 8": 260.0}}
    settings = {"engines": ["normserve:bf16", "normserve:int4", "llama.cpp:q4_0", "ctranslate2:int8"], "streams": [1, 8],
                "prefill": [128], "prompt_tokens": 128, "output_tokens": 128, "threads": 2, "processor": "a processor"}
    run = {"settings": settings, "rounds": [one, two, three], "not_installed": {"ctranslate2:int8": "pip install it"},
           "ids": {"normserve:bf16": [1, 2, 3], "llama.cpp:q4_0": [1, 2, 4]}, "versions": {"normserve:bf16": "1, gRPC"},
           "failed": {}, "command": "compare.py --model m",
           "limits": {"read_gb_per_s": 30.0, "fp32_gflops": 200.0, "allowed": {"float32 arithmetic": 740.7}}}
    compare.summarise(run)
    return run


def test_medians_are_over_the_rounds_that_have_the_figure():
    summary = canned_run()["summary"]
    assert summary["normserve:bf16"]["tokens/s 8"] == {"median": 200.0, "least": 200.0, "most": 260.0, "rounds": 3}
    assert summary["llama.cpp:q4_0"]["tokens/s 8"] == {"median": 140.0, "least": 120.0, "most": 160.0, "rounds": 2}


def test_the_report_has_medians_ratios_and_what_was_not_run():
    text = report.markdown(canned_run())
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    head = next(row for row in rows if row[0] == "engine")
    bf16 = dict(zip(head, next(row for row in rows if row[0] == "normserve:bf16")))
    assert (bf16["1 in flight"], bf16["8 in flight"], bf16["decode 8"], bf16["peak MiB"]) == ("90.0", "200", "300", "512")
    assert ["tokens/s 1", "normserve:int4", "180", "llama.cpp:q4_0", "200", "0.90"] in rows
    assert ["tokens/s 8", "normserve:int4", "240", "llama.cpp:q4_0", "140", "1.71"] in rows
    assert "- ctranslate2:int8: not installed; `pip install it`" in text
    assert "Leading tokens equal to normserve:bf16's, of 16: llama.cpp:q4_0 2." in text
    assert "a factor of 1.33 (llama.cpp:q4_0, tokens/s 8)" in text
    assert "medians of 3 rounds, normserve:int4 of 2, llama.cpp:q4_0 of 2." in text
    assert "30.0 GB/s read, 200 float32 GFLOP/s; so at most 741 tokens/s (float32 arithmetic)" in text


def test_the_plot_is_xml_with_a_bar_per_engine_and_load():
    root = xml.etree.ElementTree.fromstring(plot.svg(canned_run()))
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in root.iter(f"{space}rect") if r.get("x")]
    assert len(bars) == 2 * 3 and max(float(b.get("width")) for b in bars) == plot.BARS
    labels = [t.text for t in root.iter(f"{space}text")]
    assert labels.count("llama.cpp:q4_0") == 2 and "8 in flight, output tokens/s" in labels


def test_limits_of_a_model_count_a_tied_embedding_once_and_an_untied_one_not(tmp_path):
    def write(shapes):
        header = json.dumps({n: {"dtype": "BF16", "shape": s, "data_offsets": [0, 0]} for n, s in shapes.items()}).encode()
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        return limits.matrix_parameters(str(tmp_path))
    tied = {"model.embed_tokens.weight": [100, 10], "model.norm.weight": [10], "a.q_proj.weight": [10, 10]}
    assert write(tied) == 1100
    assert write({**tied, "lm_head.weight": [100, 10]}) == 1100
    assert limits.allowed({"read_gb_per_s": 22, "fp32_gflops": 2.2}, 1100)["one stream, 16-bit weights"] == pytest.approx(1e7)


def test_appended_rounds_may_have_other_engines_but_no_other_load():
    arguments = argparse.Namespace(json_out="run.json")
    earlier = {"settings": {"engines": ["a", "b"], "streams": [1]}, "rounds": [{}]}
    compare.appended(arguments, earlier, {"engines": ["b", "c"], "streams": [1]})
    assert earlier["settings"] == {"engines": ["a", "b", "c"], "streams": [1]}
    with pytest.raises(SystemExit, match="run.json is of other settings"):
        compare.appended(arguments, earlier, {"engines": ["b"], "streams": [2]})


def test_every_adapter_says_what_it_is_and_how_it_is_installed():
    for key in compare.DEFAULT_ENGINES:
        name, _, variant = key.partition(":")
        adapter = compare.adapter_named(compare.ADAPTERS[name])
        assert adapter.NAME == name and variant in adapter.VARIANTS and adapter.INSTALL and adapter.MODULE
        assert hasattr(adapter, "Engine") or hasattr(adapter, "make")


def test_an_engine_that_is_not_installed_is_listed_with_its_command_and_nothing_is_measured(tmp_path):
    result = subprocess.run([sys.executable, COMPARE / "compare.py", "--model", tmp_path, "--rivals", tmp_path,
                             "--engines", "ctranslate2:int8,llama.cpp:q4_0"],
                            capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and "no engine is installed" in result.stderr
    assert f"ctranslate2:int8: python3 -m venv {tmp_path}/ctranslate2 && " in result.stderr


FAKE = '''
import time
from engines import base
class Engine(base.Engine):
    def start(self):
        print("noise of a library")
        self.version = "fake"
    def generate(self, prompts, output):
        short = output - (self.variant == "short")
        now = time.perf_counter()
        return [[now] * short for _ in prompts], [prompt[:1] * short for prompt in prompts]
'''


@pytest.fixture
def fake_worker(tmp_path, monkeypatch):
    """worker.py beside an engines package that has a fake."""
    engines = tmp_path / "engines"
    engines.mkdir()
    for path in (COMPARE / "worker.py", COMPARE / "engines" / "base.py"):
        target = tmp_path if path.name == "worker.py" else engines
        (target / path.name).write_text(path.read_text())
    (engines / "fake.py").write_text(FAKE)
    monkeypatch.setattr(rounds, "WORKER", str(tmp_path / "worker.py"))

    def start(variant):
        engine = rounds.Installed(f"fake:{variant}", "fake", None, variant, sys.executable, "model")
        return rounds.Worker(engine, 2, {}, subprocess.DEVNULL)
    return start


def test_a_worker_answers_whatever_the_engine_prints(fake_worker):
    worker = fake_worker("whole")
    assert worker.about["version"] == "fake" and worker.about["start_s"] >= 0
    answer = worker.ask(prompts=[[7, 8], [9, 10]], output=3)
    assert answer["ids"] == [[7, 7, 7], [9, 9, 9]] and answer["seconds"] >= max(answer["times"][0]) >= 0
    assert worker.ask(rss=True)["peak_rss_bytes"] > 2**20
    worker.stop()
    assert worker.process.returncode == 0


def test_an_engine_that_gives_fewer_tokens_fails(fake_worker):
    worker = fake_worker("short")
    with pytest.raises(RuntimeError, match="fake:short: its process ended with 1"):
        worker.ask(prompts=[[7, 8]], output=3)
    worker.stop()
