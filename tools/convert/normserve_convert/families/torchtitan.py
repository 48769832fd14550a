# SPDX-License-Identifier: Apache-2.0
"""SimpleGPT, PreNorm and PreNorm+QKNorm, trained with the SimpleGPT repository's torchtitan fork.

Names and values stay as they are. The training code saves no config: sizes come from the table of
its flavors or from the user, and are checked against the tensors. What no tensor tells (rmsnorm or
layernorm, the context length of a weights-only checkpoint) takes the training code's default and is
reported as a note.
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

ARCHITECTURES = {
    "llama2": "PrenormTransformer",
    "llama2_simplegpt": "SimpleGPT",
    "llama2_preqknorm": "PreQKNormTransformer",
    "llama3": "PrenormTransformer",
    "llama3_simplegpt": "SimpleGPT",
    "llama3_preqknorm": "PreQKNormTransformer",
}

NORM_TYPES = ("rmsnorm", "fused_rmsnorm", "layernorm", "np_layernorm")

# The model arguments of the training code with their defaults.
DEFAULTS: dict[str, Any] = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": None,
    "vocab_size": -1,
    "multiple_of": 256,
    "ffn_dim_multiplier": None,
    "norm_eps": 1e-5,
    "rope_theta": 10000,
    "max_batch_size": 32,
    "max_seq_len": 2048,
    "depth_init": True,
    "norm_type": "rmsnorm",
}


def _llama2(dim: int, n_layers: int, n_heads: int) -> dict[str, Any]:
    return {"dim": dim, "n_layers": n_layers, "n_heads": n_heads}


_BIG = {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "multiple_of": 4096}

_LLAMA2_FLAVORS = {
    "debugmodel": _llama2(256, 8, 16),
    "20M": _llama2(256, 4, 4),
    "22M": _llama2(256, 6, 4),
    "35M": _llama2(384, 6, 6),
    "39M": _llama2(384, 8, 6),
    "60M": _llama2(512, 8, 8),
    "67M": _llama2(512, 10, 8),
    "102M": _llama2(640, 12, 10),
    "134M": _llama2(768, 12, 12),
    "162M": _llama2(768, 16, 12),
    "271M": _llama2(1024, 16, 16),
    "297M": _llama2(1024, 18, 16),
    "360M": _llama2(1152, 18, 16),
    "1B": _llama2(2048, 18, 16),
    "7B": _llama2(4096, 32, 32),
    "13B": _llama2(5120, 40, 40),
    "26B": _llama2(5120, 80, 40),
    "70B": {**_BIG, "ffn_dim_multiplier": 1.3},
}
_LLAMA3_FLAVORS = {
    "debugmodel": {**_llama2(1024, 16, 16), "rope_theta": 500000},
    "8B": {
        **_llama2(4096, 32, 32),
        "n_kv_heads": 8,
        "ffn_dim_multiplier": 1.3,
        "multiple_of": 1024,
        "rope_theta": 500000,
    },
    "70B": {**_BIG, "ffn_dim_multiplier": 1.3, "rope_theta": 500000},
}
FLAVORS = {
    name: _LLAMA2_FLAVORS if name.startswith("llama2") else _LLAMA3_FLAVORS
    for name in ARCHITECTURES
}


def recognises(names: set[str]) -> bool:
    return "tok_embeddings.weight" in names


def convert(tensors: Mapping[str, LazyTensor], options: Options, _embedded: Any) -> Conversion:
    """`tensors` without prefix, with or without the freqs_cis buffer."""
    if options.model not in ARCHITECTURES:
        raise ConvertError(
            f"--model is {options.model or 'missing'}; a torchtitan checkpoint needs one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    weights = dict(tensors)
    freqs = weights.pop("freqs_cis", None)
    notes: list[str] = []
    args = _model_args(weights, freqs, options, notes)
    architecture = ARCHITECTURES[options.model]
    label = f"{architecture} ({options.model} {options.flavor or 'with --model-args'})"
    check_tensors(weights, expected_shapes(architecture, args), label)
    if freqs is not None:
        _check_rotary(freqs, args)
    config = {
        "architecture": architecture,
        "model_name": options.model,
        "torch_dtype": main_dtype(list(weights.values())),
        "model_args": args,
    }
    return Conversion(config, list(weights.values()), notes)


def feed_forward_width(args: Mapping[str, Any]) -> int:
    """The training code's rule: two thirds of 4 * dim, scaled, rounded up to multiple_of."""
    width = int(2 * 4 * args["dim"] / 3)
    if args["ffn_dim_multiplier"] is not None:
        width = int(args["ffn_dim_multiplier"] * width)
    step = args["multiple_of"]
    return step * ((width + step - 1) // step)


def expected_shapes(architecture: str, args: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor that the architecture has, by name."""
    dim, vocab, width = args["dim"], args["vocab_size"], feed_forward_width(args)
    q_width = args["n_heads"] * (dim // args["n_heads"])
    kv_width = (args["n_kv_heads"] or args["n_heads"]) * (dim // args["n_heads"])
    linears = {
        ("attention", "q"): (q_width, dim),
        ("attention", "k"): (kv_width, dim),
        ("attention", "v"): (kv_width, dim),
        ("attention", "o"): (dim, q_width),
        ("feed_forward", "1"): (width, dim),
        ("feed_forward", "2"): (dim, width),
        ("feed_forward", "3"): (width, dim),
    }
    norms: dict[str, tuple[int, ...]] = {"norm.weight": (dim,)}
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (vocab, dim),
        "output.weight": (vocab, dim),
    }
    for layer in range(args["n_layers"]):
        prefix = f"layers.{layer}."
        for (block, name), shape in linears.items():
            if architecture == "SimpleGPT":
                shapes[f"{prefix}{block}.sn{name}.lin.weight"] = shape
                norms[f"{prefix}{block}.sn{name}.norm.weight"] = shape[:1]
            else:
                shapes[f"{prefix}{block}.w{name}.weight"] = shape
        if architecture != "SimpleGPT":
            norms[f"{prefix}attention_norm.weight"] = (dim,)
            norms[f"{prefix}ffn_norm.weight"] = (dim,)
        if architecture == "PreQKNormTransformer":
            norms[f"{prefix}attention.q_norm.weight"] = (q_width,)
            norms[f"{prefix}attention.k_norm.weight"] = (kv_width,)
    if args["norm_type"] != "np_layernorm":
        shapes.update(norms)
    return shapes


def _model_args(
    weights: Mapping[str, LazyTensor],
    freqs: LazyTensor | None,
    options: Options,
    notes: list[str],
) -> dict[str, Any]:
    given = _given_args(options)
    args = merge_args(DEFAULTS, given, "--model-args")
    if args["vocab_size"] == -1:
        args["vocab_size"] = (weights["tok_embeddings.weight"].shape or (0,))[0]
    if options.norm_type is not None:
        args["norm_type"] = options.norm_type
    elif "norm_type" not in given:
        has_weights = "norm.weight" in weights
        args["norm_type"] = "rmsnorm" if has_weights else "np_layernorm"
        if has_weights:
            notes.append("norm_type rmsnorm is assumed (no tensor tells); say --norm-type if not")
    if args["norm_type"] not in NORM_TYPES:
        raise ConvertError(f"norm_type is {args['norm_type']!r}; known: {', '.join(NORM_TYPES)}")
    if options.max_seq_len is not None:
        args["max_seq_len"] = options.max_seq_len
    elif "max_seq_len" not in given:
        if freqs is not None and freqs.shape:
            args["max_seq_len"] = freqs.shape[0] // 2
        else:
            notes.append(
                f"max_seq_len {args['max_seq_len']} is assumed (no tensor tells); say "
                "--max-seq-len if not"
            )
    sizes = ("dim", "n_layers", "n_heads", "vocab_size", "multiple_of", "max_seq_len")
    need_positive(args, sizes, "model arguments")
    if args["n_kv_heads"] is not None:
        need_positive(args, ("n_kv_heads",), "model arguments")
    if args["dim"] % args["n_heads"] or args["n_heads"] % (args["n_kv_heads"] or args["n_heads"]):
        raise ConvertError(
            f"dim {args['dim']}, n_heads {args['n_heads']} and n_kv_heads {args['n_kv_heads']} do "
            "not divide one another"
        )
    return args


def _given_args(options: Options) -> dict[str, Any]:
    if options.model_args is not None:
        for key in ("dim", "n_layers", "n_heads"):
            if key not in options.model_args:
                raise ConvertError(f"--model-args: '{key}' is missing")
        return dict(options.model_args)
    flavors = FLAVORS[options.model or ""]
    if options.flavor not in flavors:
        raise ConvertError(
            f"--flavor is {options.flavor or 'missing'}; {options.model} has "
            f"{', '.join(flavors)}; other sizes are given by --model-args"
        )
    return dict(flavors[options.flavor])


def _check_rotary(freqs: LazyTensor, args: Mapping[str, Any]) -> None:
    """The buffer is not written, but it tells head width, context and theta."""
    shape = (2 * args["max_seq_len"], args["dim"] // args["n_heads"] // 2)
    if freqs.shape != shape or freqs.dtype.name != "complex64":
        raise ConvertError(
            f"tensor 'freqs_cis' is {freqs.dtype.name} {freqs.shape}; these model arguments need "
            f"complex64 {shape}"
        )
    angles = np.angle(freqs.read()[1]) if shape[0] > 1 else np.zeros(0)
    wanted = 1.0 / args["rope_theta"] ** (np.arange(shape[1]) / shape[1])
    if angles.size and not np.allclose(angles, wanted, rtol=1e-3, atol=1e-6):
        raise ConvertError(
            f"tensor 'freqs_cis' was not made with rope_theta {args['rope_theta']}: its last angle "
            f"is {angles[-1]:.6g}, not {wanted[-1]:.6g}"
        )
