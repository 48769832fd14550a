# SPDX-License-Identifier: Apache-2.0
"""Element types: PyTorch's names, their bytes as numpy sees them, and safetensors' names.

numpy has no bfloat16 and no float8: their bits travel as unsigned integers, which is all that
moving them from file to file needs. No arithmetic is done on them.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type."""

    name: str  # as PyTorch writes it, without "torch."
    raw: np.dtype  # little-endian carrier of the bits
    safetensors: str | None  # None: safetensors cannot hold it


def _make(name: str, raw: str, safetensors: str | None) -> DType:
    return DType(name, np.dtype(raw), safetensors)


BY_NAME = {
    t.name: t
    for t in (
        _make("float64", "<f8", "F64"),
        _make("float32", "<f4", "F32"),
        _make("float16", "<f2", "F16"),
        _make("bfloat16", "<u2", "BF16"),
        _make("float8_e4m3fn", "u1", "F8_E4M3"),
        _make("float8_e5m2", "u1", "F8_E5M2"),
        _make("complex64", "<c8", None),
        _make("complex128", "<c16", None),
        _make("int64", "<i8", "I64"),
        _make("int32", "<i4", "I32"),
        _make("int16", "<i2", "I16"),
        _make("int8", "i1", "I8"),
        _make("uint8", "u1", "U8"),
        _make("bool", "u1", "BOOL"),
    )
}

# The typed storage classes that torch.save names in its persistent ids.
BY_STORAGE = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}

# What the server loads.
SERVED = ("float32", "float16", "bfloat16")
