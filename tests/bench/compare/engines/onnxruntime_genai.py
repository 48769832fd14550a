# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime GenAI in process: a static batch, in which every request does the same step."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from engines import base

NAME = "onnxruntime-genai"
FOLDER = "onnxruntime-genai"
MODULE = "onnxruntime_genai"
INSTALL = "onnxruntime-genai==0.18.0 numpy"
VARIANTS = {"int4": "int4", "fp32": "fp32"}
# Its model builder traces the model of transformers.
CONVERTER = ("convert-onnx", "onnxruntime-genai==0.18.0 torch==2.11.0 transformers==5.24.0 onnx onnx_ir")
SUFFIX = ".onnx"

def convert(model: str, target: str, variant: str) -> None:
    with tempfile.TemporaryDirectory(prefix="compare-onnx-") as folder:
        source, cache = pathlib.Path(folder) / "model", pathlib.Path(folder) / "cache"
        without_nulls(pathlib.Path(model).resolve(), source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", target, "-p", variant]
        command += ["-e", "cpu", "-c", str(cache)]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def without_nulls(model: pathlib.Path, copy: pathlib.Path) -> None:
    """The checkpoint without what is null in config.json: the builder fails on "rope_scaling": null."""
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").unlink()
    kept = {key: value for key, value in config.items() if value is not None}
    (copy / "config.json").write_text(json.dumps(kept), encoding="utf-8")


class Engine(base.Engine):
    def start(self) -> None:
        import onnxruntime_genai

        self.library = onnxruntime_genai
        self.version = onnxruntime_genai.__version__
        config = onnxruntime_genai.Config(self.model)
        options = f'{{"intra_op_num_threads": {self.threads}}}'
        config.overlay(f'{{"model": {{"decoder": {{"session_options": {options}}}}}}}')
        self.weights = onnxruntime_genai.Model(config)

    def generate(self, prompts, output):
        import numpy

        length = len(prompts[0]) + output
        parameters = self.library.GeneratorParams(self.weights)
        # min_length keeps the end-of-sequence token away.
        parameters.set_search_options(
            max_length=length, min_length=length, batch_size=len(prompts), do_sample=False
        )
        generator = self.library.Generator(self.weights, parameters)
        generator.append_tokens(numpy.array(prompts, numpy.int32))
        times = []
        for _ in range(output):
            generator.generate_next_token()
            times.append(time.perf_counter())
        ids = [list(map(int, generator.get_sequence(row)[-output:])) for row in range(len(prompts))]
        return [times] * len(prompts), ids
