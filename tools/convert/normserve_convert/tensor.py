# SPDX-License-Identifier: Apache-2.0
"""A tensor that is still in its file: name, type and shape are known, the numbers are read on
demand.

Tensors are read one at a time, so converting needs no more memory than the largest of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from normserve_convert.dtypes import DType
from normserve_convert.errors import ConvertError

MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 40


@dataclass(frozen=True)
class LazyTensor:
    """`read` returns a contiguous array of dtype.raw with this shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def byte_count(self) -> int:
        return self.element_count * self.dtype.raw.itemsize

    def renamed(self, name: str) -> "LazyTensor":
        return replace(self, name=name)

    def rows(self, name: str, start: int, stop: int) -> "LazyTensor":
        """Rows [start, stop) of the first dimension, under another name."""
        return LazyTensor(
            name,
            self.dtype,
            (stop - start, *self.shape[1:]),
            lambda: np.ascontiguousarray(self.read()[start:stop]),
        )

    def mapped(self, name: str, change: Callable[[np.ndarray], np.ndarray]) -> "LazyTensor":
        """The same shape with its elements moved by `change`, under another name."""
        return LazyTensor(
            name, self.dtype, self.shape, lambda: np.ascontiguousarray(change(self.read()))
        )


def check_shape(shape: object, where: str) -> tuple[int, ...]:
    """`shape` as a tuple of sizes, or ConvertError: it comes from a file."""
    if not isinstance(shape, (tuple, list)) or len(shape) > MAX_DIMENSIONS:
        raise ConvertError(f"{where}: a tensor's shape is no list of up to {MAX_DIMENSIONS} sizes")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ConvertError(f"{where}: a tensor's shape {tuple(shape)} is invalid")
    if math.prod(shape) > MAX_ELEMENTS:
        raise ConvertError(f"{where}: a tensor's shape {tuple(shape)} is too large")
    return tuple(shape)
