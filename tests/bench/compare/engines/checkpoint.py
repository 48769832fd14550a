# SPDX-License-Identifier: Apache-2.0
"""A Llama checkpoint folder as arrays, for the converters: config.json and safetensors, with numpy alone."""

import json
import pathlib

import numpy


def config_of(model: str) -> dict:
    return json.loads((pathlib.Path(model) / "config.json").read_text(encoding="utf-8"))


def check_plain_llama(config: dict) -> None:
    """The converters know the plain Llama layer only; anything else would be converted to something else."""
    wanted = {"model_type": "llama", "hidden_act": "silu"}
    for key, value in wanted.items():
        if config.get(key) != value:
            raise ValueError(f"config.json: {key} is {config.get(key)!r}; the converters know {value!r} only")
    for key in ("rope_scaling", "attention_bias", "mlp_bias"):
        if config.get(key):
            raise ValueError(f"config.json: {key} is {config[key]!r}; the converters know models without it")
    if config.get("norm_type", "rms") != "rms":
        raise ValueError(f"config.json: norm_type is {config['norm_type']!r}; no rival knows it")


def tensors_of(model: str) -> dict[str, numpy.ndarray]:
    """Every weight as float32."""
    tensors = {}
    for path in sorted(pathlib.Path(model).glob("*.safetensors")):
        data = numpy.memmap(path, numpy.uint8, "r")
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        for name, entry in json.loads(data[8:begin].tobytes()).items():
            if name != "__metadata__":
                low, high = entry["data_offsets"]
                values = widen(data[begin + low : begin + high], entry["dtype"])
                tensors[name] = values.reshape(entry["shape"])
    return tensors


def widen(raw: numpy.ndarray, kind: str) -> numpy.ndarray:
    if kind == "BF16":
        return (raw.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    kinds = {"F16": numpy.float16, "F32": numpy.float32}
    if kind not in kinds:
        raise ValueError(f"tensor type {kind}: BF16, F16 or F32 is needed")
    return raw.view(kinds[kind]).astype(numpy.float32)


def head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
