# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI in process: its continuous batching pipeline, stepped by hand to see when tokens come."""

import os
import pathlib
import subprocess
import sys
import time

from engines import base

NAME = "openvino-genai"
FOLDER = "openvino-genai"
MODULE = "openvino_genai"
INSTALL = "openvino-genai==2026.4.1.0 numpy"
# -f32: arithmetic in float32 where the processor has bfloat16's, which is then its default.
VARIANTS = {"int8": "int8", "fp16": "fp16", "int8-f32": "int8", "fp16-f32": "fp16"}
CONVERTER = ("convert-openvino", "optimum-intel openvino==2026.4.1 nncf openvino-tokenizers torch==2.11.0")
SUFFIX = ".openvino"


def convert(model: str, target: str, variant: str) -> None:
    command = [str(pathlib.Path(sys.executable).parent / "optimum-cli"), "export", "openvino"]
    command += ["--model", model, "--task", "text-generation-with-past", "--weight-format", VARIANTS[variant], target]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


class Engine(base.Engine):
    def start(self) -> None:
        import openvino_genai

        self.library = openvino_genai
        self.version = openvino_genai.__version__
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 4096
        scheduler.max_num_seqs = 256
        properties = {"INFERENCE_NUM_THREADS": self.threads}
        if self.variant.endswith("-f32"):
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            self.model,
            scheduler_config=scheduler,
            device="CPU",
            properties=properties,
        )

    def generate(self, prompts, output):
        import numpy
        import openvino

        config = self.library.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        tensors = [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
        handles = [self.pipeline.add_request(i, tensor, config) for i, tensor in enumerate(tensors)]
        times, ids = [[] for _ in prompts], [[] for _ in prompts]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter()
            for row, handle in enumerate(handles):
                while handle.can_read():
                    for part in handle.read().values():
                        ids[row] += list(map(int, part.generated_ids))
                        times[row] += [now] * len(part.generated_ids)
        return times, ids
