# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints with random bfloat16 weights: one shape in every norm type, so that only the norms differ."""

import json
import math
import pathlib

import numpy as np

from model_shapes import KINDS, SHAPES, config_of, safetensors_header, shapes_of  # noqa: F401  (norms.py takes some from here)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Cut, not rounded: random weights do not mind."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write(folder: pathlib.Path, shape: str, kind: str) -> None:
    """The folder's config.json and model.safetensors, tensor by tensor; nothing where it is there already."""
    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, kind), indent=1))
    tensors = shapes_of(shape, kind)
    rng = np.random.default_rng(1)
    unfinished = folder / "unfinished"
    with open(unfinished, "wb") as file:
        file.write(safetensors_header(tensors))
        for size in tensors.values():
            if len(size) == 1:
                values = np.ones(size, np.float32)
            else:
                values = rng.standard_normal(size, np.float32) / math.sqrt(size[1])
            bfloat16(values).tofile(file)
    unfinished.rename(folder / "model.safetensors")
