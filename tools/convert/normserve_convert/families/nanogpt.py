# SPDX-License-Identifier: Apache-2.0
"""nanoGPT checkpoints (GPT-2's shape), and SimpleGPT on nanoGPT with this project's tensor names.

Names and values stay as they are: nanoGPT's projections are nn.Linear, so nothing is transposed.
The head is tied to the embedding and written once. Sizes come from the checkpoint's own model_args.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from normserve_convert.conversion import (
    Conversion,
    Options,
    check_tensors,
    main_dtype,
    merge_args,
    need_positive,
)
from normserve_convert.errors import ConvertError
from normserve_convert.tensor import LazyTensor

DEFAULTS: dict[str, Any] = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "bias": True,
    "vocab_size": 50304,
    "dropout": 0.0,
}
_EMBEDDING = "transformer.wte.weight"
_HEAD = "lm_head.weight"


def recognises(names: set[str]) -> bool:
    return _EMBEDDING in names


def convert(tensors: Mapping[str, LazyTensor], options: Options, embedded: Any) -> Conversion:
    """`embedded` is the checkpoint's model_args, if it has any."""
    architecture = "simple_nanogpt" if "transformer.h.0.attn.q.lin.weight" in tensors else "nanogpt"
    if options.model not in (None, architecture):
        raise ConvertError(f"--model is {options.model}; the tensors are those of {architecture}")
    given = options.model_args if options.model_args is not None else embedded
    if not isinstance(given, dict):
        raise ConvertError("the checkpoint has no 'model_args'; give them by --model-args")
    for key in ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size"):
        if given.get(key) is None:
            raise ConvertError(f"model_args: '{key}' is missing")
    args = merge_args(DEFAULTS, given, "model_args")
    need_positive(args, ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"), "model_args")
    if args["n_embd"] % args["n_head"]:
        raise ConvertError(f"n_embd {args['n_embd']} is no multiple of n_head {args['n_head']}")
    weights = _without_buffers_and_head(tensors, args)
    check_tensors(weights, expected_shapes(architecture, args), architecture)
    config = {
        "architecture": architecture,
        "model_name": architecture,
        "torch_dtype": main_dtype(list(weights.values())),
        "model_args": args,
    }
    return Conversion(config, list(weights.values()))


def expected_shapes(architecture: str, args: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor that the architecture has, by name; the tied head is not one."""
    width, bias = args["n_embd"], args["bias"]
    shapes: dict[str, tuple[int, ...]] = {
        _EMBEDDING: (args["vocab_size"], width),
        "transformer.wpe.weight": (args["block_size"], width),
        "transformer.ln_f.weight": (width,),
    }
    if architecture == "nanogpt":
        linears = {"attn.c_attn": (3 * width, width)}
        norms = ["ln_1", "ln_2"]
        if bias:
            shapes["transformer.ln_f.bias"] = (width,)
    else:
        linears = {f"attn.{name}": (width, width) for name in "qkv"}
        norms = []
    linears |= {
        "attn.c_proj": (width, width),
        "mlp.c_fc": (4 * width, width),
        "mlp.c_proj": (width, 4 * width),
    }
    for layer in range(args["n_layer"]):
        prefix = f"transformer.h.{layer}."
        for name, shape in linears.items():
            linear = name if architecture == "nanogpt" else f"{name}.lin"
            shapes[f"{prefix}{linear}.weight"] = shape
            if bias:
                shapes[f"{prefix}{linear}.bias"] = shape[:1]
            if architecture == "simple_nanogpt":
                shapes[f"{prefix}{name}.norm.weight"] = shape[:1]
        for name in norms:
            shapes[f"{prefix}{name}.weight"] = (width,)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (width,)
    return shapes


def _without_buffers_and_head(
    tensors: Mapping[str, LazyTensor], args: Mapping[str, Any]
) -> dict[str, LazyTensor]:
    mask = (1, 1, args["block_size"], args["block_size"])
    weights = {}
    for name, tensor in tensors.items():
        # Without flash attention nanoGPT keeps the causal mask as a buffer of this name.
        if name.endswith(".attn.bias") and tensor.shape == mask:
            continue
        weights[name] = tensor
    head = weights.pop(_HEAD, None)
    if head is not None:
        embedding = weights[_EMBEDDING]
        same = head.shape == embedding.shape and head.dtype is embedding.dtype
        if not same or not np.array_equal(_bits(head.read()), _bits(embedding.read())):
            raise ConvertError(f"tensor '{_HEAD}' differs from '{_EMBEDDING}', which nanoGPT ties")
    return weights


def _bits(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint8)
