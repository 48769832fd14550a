# SPDX-License-Identifier: Apache-2.0
"""The machine's limits (limits.cc), and what they allow one model at most."""

import json
import os
import pathlib
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent / "limits.cc"


def measure(threads: int) -> dict:
    """{"threads", "read_gb_per_s", "fp32_gflops"}"""
    with tempfile.TemporaryDirectory(prefix="compare-limits-") as folder:
        binary = str(pathlib.Path(folder) / "limits")
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        subprocess.run([os.environ.get("CXX", "c++"), *flags, str(SOURCE), "-o", binary], check=True)
        done = subprocess.run([binary, str(threads)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def matrix_parameters(model: str) -> int:
    """Weights that every decoded token needs: all matrices, an untied embedding table left out."""
    total, embedding, has_head = 0, 0, False
    for path in pathlib.Path(model).glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name == "__metadata__" or len(entry["shape"]) != 2:
                continue
            size = entry["shape"][0] * entry["shape"][1]
            total += size
            has_head |= "lm_head" in name
            if "embed_tokens" in name:
                embedding = size
    return total - (embedding if has_head else 0)


def allowed(limits: dict, parameters: int) -> dict[str, float]:
    """Tokens/s: reading 16-bit weights once per token; computing a token in float32."""
    return {
        "one stream, 16-bit weights": limits["read_gb_per_s"] * 1e9 / (2 * parameters),
        "float32 arithmetic": limits["fp32_gflops"] * 1e9 / (2 * parameters),
    }
