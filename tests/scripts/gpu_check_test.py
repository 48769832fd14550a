# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/check.sh without a GPU: what it says, and its own arithmetic. Its dry run is in tests/e2e."""
import json
import math
import os
import pathlib
import random
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"
sys.path.insert(0, str(GPU))
import check  # noqa: E402
import correctness  # noqa: E402
import generation  # noqa: E402
import intervals  # noqa: E402
import norm_speed  # noqa: E402
import programs  # noqa: E402
import random_checkpoint  # noqa: E402
import gpu_report  # noqa: E402


@pytest.mark.skipif(programs.gpu() != "", reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path):
    result = subprocess.run([GPU / "check.sh", "--out", tmp_path], capture_output=True, text=True, timeout=60,
                            check=False, env={**os.environ, "PYTHON": sys.executable})
    assert (result.returncode, result.stdout, result.stderr) == (2, "", check.NO_GPU + "\n")
    assert not list(tmp_path.iterdir())


def test_a_median_s_interval_holds_it_19_times_in_20():
    assert intervals.median_interval([3, 1, 2]) == (1, 3)
    assert intervals.median_interval(list(range(6))) == (0, 5)
    assert intervals.median_interval(list(range(11))) == (1, 9)  # 1 - 2 * (1 + 11) / 2048 = 98.8 %
    rng, held = random.Random(3), 0
    for _ in range(2000):
        low, high = intervals.median_interval([rng.expovariate(1) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert held >= 1900


def test_a_ratio_is_of_each_round():
    # Both are twice as fast in the second round; their ratio is not.
    assert intervals.ratio([10, 20, 10], [8, 16, 8]) == {"median": 1.25, "low": 1.25, "high": 1.25, "samples": 3}


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def context_of(tmp_path, budget=None):
    return programs.Context(False, tmp_path, tmp_path, budget or programs.Budget(100))


def test_a_row_that_time_does_not_allow_is_not_begun(tmp_path):
    clock = Clock()
    total = programs.Budget(100, clock)
    row = check.Row("a", "A", 30, lambda context: {"status": "measured"}, least=20)
    assert check.run_row(row, context_of(tmp_path), total)["status"] == "measured"
    clock.seconds = 81
    assert check.run_row(row, context_of(tmp_path), total)["status"] == "not run: out of time"


def test_all_rows_together_have_more_than_the_time_there_is():
    # So that what is last is left out, and not what is first cut short.
    assert sum(row.seconds for row in check.ROWS[:6]) < 400
    assert check.ROWS[6].name == "generation"


def test_a_row_that_throws_costs_no_other(tmp_path):
    def broken(context):
        raise RuntimeError("no such thing")
    result = check.run_row(check.Row("a", "A", 30, broken), context_of(tmp_path), programs.Budget(100))
    assert (result["status"], result["problems"]) == ("failed", ["RuntimeError: no such thing"])


def test_a_program_out_of_time_keeps_what_it_has_said(tmp_path):
    context = context_of(tmp_path, programs.Budget(0.2))
    slow = ["sh", "-c", "echo '{\"a\": 1}'; echo noise; exec sleep 60"]
    lines, problem = programs.json_lines(context, "slow", slow)
    assert lines == [{"a": 1}] and problem == "out of time after 1 s"
    lines, problem = programs.lines_of(context, "ends", ["sh", "-c", "echo why >&2; exit 3"])
    assert (lines, problem) == ([], "ended with 3: why")


def test_out_of_time_is_no_failure():
    assert correctness.outcome({}, ["out of time after 60 s"], True)["status"] == "incomplete: out of time"
    assert correctness.outcome({}, ["out of time after 60 s", "a is wrong"], True)["status"] == "failed"
    assert correctness.outcome({}, [], True)["status"] == "passed"
    assert correctness.outcome({}, [], False)["status"] == "failed"


def test_googletest_s_output():
    lines = ["[ RUN      ] NormCuda/0.InPlace", "[       OK ] NormCuda/0.InPlace (12 ms)",
             "x.cc:3: Failure", "[  FAILED  ] NormCuda/1.InPlace, where TypeParam = __nv_bfloat16 (9 ms)",
             "[       OK ] WidenCuda.All (1 ms)", "[  FAILED  ] 1 test, listed below:",
             "[  FAILED  ] NormCuda/1.InPlace, where TypeParam = __nv_bfloat16"]
    assert correctness.of_googletest(lines) == ({"NormCuda": [1, 2], "WidenCuda": [1, 1]}, ["NormCuda/1.InPlace"])


@pytest.mark.parametrize("rows,us,share,met", [(1, 2.4, 0.1, True), (1, 2.6, 0.99, False), (4096, 99, 0.91, True),
                                               (4096, 1, 0.89, False)])
def test_goals(rows, us, share, met):
    line = {"op": "rms", "width": 2048, "rows": rows, "bytes": 1, "samples_us": [us], "share_of_copy": share}
    line["host_us"] = 5
    assert norm_speed.of_line(line)["met"] is met


ENGINE = """#!/bin/sh
case $1 in */rms) echo no memory >&2; exit 1;; esac
echo '{"weight_bytes": 1000, "parameters": 500, "device": "none"}'
while read -r streams prompt output; do echo "{\\"tokens_per_second\\": $((streams * 100))}"; done
"""


def test_an_engine_that_ends_costs_no_other(tmp_path):
    (tmp_path / "engine_bench").write_text(ENGINE)
    (tmp_path / "engine_bench").chmod(0o755)
    load = generation.Load(("bhyt", "rms", "bhytstar"), (1, 2), shape="tiny", rounds=6)
    result = generation.measure(context_of(tmp_path), load)
    assert result["status"] == "failed" and result["problems"] == ["engine-rms ended: no memory"]
    rates = {(f["model"], f["batch"]): f["tokens_per_second"] for f in result["figures"]}
    assert rates["bhytstar", 2] == {"median": 200, "low": 200, "high": 200, "samples": 6}
    assert [(r["ratio"], r["median"]) for r in result["ratios"]] == [("bhyt/bhytstar", 1), ("bhyt/bhytstar", 1)]


def test_engines_without_time_are_not_run(tmp_path):
    (tmp_path / "engine_bench").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "engine_bench").chmod(0o755)
    load = generation.Load(("bhyt",), (1,), shape="tiny")
    with pytest.raises(programs.NotRun, match="^not run: out of time$"):
        generation.measure(context_of(tmp_path, programs.Budget(0.3)), load)


def test_limits_are_of_the_weights_that_a_step_reads(tmp_path):
    context = context_of(tmp_path)
    context.copy_bytes_per_second = 4e12
    load = generation.Load(("rms",), (1, 64))
    weights = random_checkpoint.file_bytes("llama-1b", "rms")
    out = generation.limits(context, load, "rms", 64, {"weight_bytes": weights}, 32 * 4e12 / 2077364224)
    assert out["weight_bytes_per_step"] == weights - 2 * 32000 * 2048 == 2077364224
    assert out["share_of_measured_limit"] == pytest.approx(0.5)
    assert out["share_of_nominal_limit"] == pytest.approx(0.5 * 4 / 4.8)


@pytest.mark.parametrize("kind", ["bhyt", "simplegpt"])
def test_a_random_checkpoint_is_a_safetensors_file(tmp_path, kind):
    random_checkpoint.write(tmp_path / kind, "tiny", kind, random_checkpoint.Pools())
    data = (tmp_path / kind / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + random_checkpoint.file_bytes("tiny", kind)
    assert {name: tuple(entry["shape"]) for name, entry in header.items()} == random_checkpoint.shapes_of("tiny", kind)


def test_speeds_of_a_dry_run_are_left_out():
    result = {"status": "measured", "figures": [{"op": "rms", "us": {"median": 1.0}, "met": False}]}
    assert gpu_report.without_speeds(result)["figures"] == [{"op": "rms", "us": "not measured", "met": "not measured"}]


def test_a_report_of_measured_rows():
    figure = {"op": "rms", "width": 2048, "rows": 1, "us": intervals.summary([2.0]), "share_of_copy": 0.95,
              "goal": "<= 2.5 us", "met": True, "host_us": 7.0}
    theirs = {**figure, "mode": "eager", "us": intervals.summary([9.0])}
    norms = {"name": "norms", "title": "norm kernels", "status": "measured", "seconds": 1, "figures": [figure]}
    torch = {**norms, "name": "norms_torch", "figures": [theirs], "problems": ["out of time after 70 s"]}
    text = gpu_report.markdown({"device": "cuda", "dry": False, "rows": [norms, torch]})
    assert "| rms | 2048 | 1 | 2 (2 to 2) | 0.950 | <= 2.5 us | yes | 9 (9 to 9) | - | 7 |" in text
    assert "- norm kernels: out of time after 70 s" in text
