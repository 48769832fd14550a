# SPDX-License-Identifier: Apache-2.0
"""Compares safetensors files bit for bit, bfloat16 and float8 included, without PyTorch."""

import json
import struct


def read_bits(path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: (entry["dtype"], tuple(entry["shape"]), body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def assert_same_tensors(path, expected_path) -> None:
    got, expected = read_bits(path), read_bits(expected_path)
    assert sorted(got) == sorted(expected)
    for name, value in expected.items():
        assert got[name] == value, f"{name}: {got[name][:2]} instead of {value[:2]}, or other bits"
