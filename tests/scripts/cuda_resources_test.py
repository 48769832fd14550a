# SPDX-License-Identifier: Apache-2.0
"""The table of scripts/cuda-resources, with a stand-in for nvcc that reports what a test wants."""
import os
import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "cuda-resources"
# What ptxas -v prints per kernel; the norms' file has two instances.
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN9normserve7kernels10NormKernelI6__halfLi1EEEvv' for 'sm_90'
ptxas info    : Function properties for _ZN9normserve7kernels10NormKernelI6__halfLi1EEEvv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN9normserve7kernels10NormKernelI6__halfLi4EEEvv' for 'sm_90'
ptxas info    : Function properties for _ZN9normserve7kernels10NormKernelI6__halfLi4EEEvv
    16 bytes stack frame, SPILL bytes spill stores, SPILL bytes spill loads
ptxas info    : Used 88 registers, used 1 barriers, 512 bytes smem
"""


@pytest.fixture
def run(tmp_path):
    def run_with(file, report, status=0, arguments=()):
        (tmp_path / "report").write_text(report)
        nvcc = tmp_path / "nvcc"
        nvcc.write_text(f"#!/bin/sh\ncase $* in *kernels/{file}*) cat {tmp_path}/report >&2; exit {status};; esac\n")
        nvcc.chmod(0o755)
        return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "NORMSERVE_NVCC": str(nvcc), "CCACHE_DISABLE": "1"})
    return run_with


def test_a_row_per_template_has_the_least_and_the_most(run):
    result = run("norm.cu", REPORT.replace("SPILL", "0"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[2:] == ["| `NormKernel` | 2 | 30..88 | 0, 0 | 0..512 | 0..16 |"]


def test_a_row_per_instance(run):
    result = run("norm.cu", REPORT.replace("SPILL", "0"), arguments=["--instances"])
    kernels = [line.split("|")[1].strip() for line in result.stdout.splitlines()[2:]]
    assert kernels == ["`NormKernel<half, 1>`", "`NormKernel<half, 4>`"]


def test_a_norm_that_spills_fails(run):
    result = run("norm.cu", REPORT.replace("SPILL", "8"))
    assert result.returncode == 1
    assert result.stderr == "error: NormKernel<half, 4> spills registers\n"
    assert "| 0..8, 0..8 |" in result.stdout


def test_attention_may_spill(run):
    assert run("attention_bf16.cu", REPORT.replace("SPILL", "8")).returncode == 0


def test_a_source_that_does_not_compile_is_named(run):
    result = run("qkv.cu", "qkv.cu(3): error: what", status=2)
    assert result.returncode == 1 and "qkv.cu for sm_90" in result.stderr and "error: what" in result.stderr
