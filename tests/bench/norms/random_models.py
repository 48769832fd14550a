# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints with random bfloat16 weights: one shape in every norm type, so that only the norms differ."""

import json
import math
import pathlib
import struct

import numpy as np

from model_shapes import KINDS, SHAPES, config_of, shapes_of  # noqa: F401  (norms.py names them here)


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
    header, offset = {}, 0
    for name, size in tensors.items():
        end = offset + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(1)
    unfinished = folder / "unfinished"
    with open(unfinished, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in tensors.values():
            if len(size) == 1:
                values = np.ones(size, np.float32)
            else:
                values = rng.standard_normal(size, np.float32) / math.sqrt(size[1])
            bfloat16(values).tofile(file)
    unfinished.rename(folder / "model.safetensors")
