# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of random bfloat16 weights in a second or two, with the standard library alone.

For speed, and nothing else: every matrix is cut from one pool of normal numbers, at another place each."""
import json
import math
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "norms"))
from model_shapes import KINDS, SHAPES, config_of, safetensors_header, shapes_of  # noqa: E402, F401

POOL = 1 << 19  # numbers; a prime step between cuts keeps rows of a matrix from being equal
STEP = 7919
ONE = b"\x80\x3f"


def bfloat16_pool(spread: float, seed: int) -> bytes:
    """Normal numbers, cut to bfloat16."""
    rng = random.Random(seed)
    wide = struct.pack(f"<{POOL}f", *(rng.gauss(0, spread) for _ in range(POOL)))
    narrow = bytearray(2 * POOL)
    narrow[0::2], narrow[1::2] = wide[2::4], wide[3::4]
    return bytes(narrow)


class Pools:
    """One pool per width that a row's sum runs over."""

    def __init__(self):
        self.pools, self.cuts = {}, 0

    def write(self, file, size: tuple[int, ...]) -> None:
        if len(size) == 1:
            file.write(ONE * size[0])
            return
        if size[1] not in self.pools:
            pool = bfloat16_pool(1 / math.sqrt(size[1]), size[1])
            self.pools[size[1]] = memoryview(pool + pool)
        pool, left = self.pools[size[1]], 2 * math.prod(size)
        while left > 0:
            self.cuts += 1
            begin = 2 * (self.cuts * STEP % POOL)
            file.write(pool[begin:begin + min(left, 2 * POOL)])
            left -= 2 * POOL


def write(folder: pathlib.Path, shape: str, kind: str, pools: Pools) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, kind)))
    tensors = shapes_of(shape, kind)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(safetensors_header(tensors))
        for size in tensors.values():
            pools.write(file, size)


def file_bytes(shape: str, kind: str) -> int:
    return sum(2 * math.prod(size) for size in shapes_of(shape, kind).values())


def share_read_per_step(shape: str, kind: str) -> float:
    """Of the weights: all but the embedding table, of which a step reads a row per token."""
    tables = sum(2 * math.prod(size) for name, size in shapes_of(shape, kind).items() if "embed" in name)
    return 1 - tables / file_bytes(shape, kind)
