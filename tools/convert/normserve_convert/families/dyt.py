# SPDX-License-Identifier: Apache-2.0
"""Llama with Dynamic Tanh, under the names of the DyT code (and its base library, FMS).

The result has Hugging Face's Llama names, norm_type "dyt" and the embedding's scalar as
shared_scale. Fused projections are split. FMS rotates the pairs (2i, 2i+1) of a head, Hugging
Face's Llama the halves: the rows of q and k are reordered once here, which leaves every product of
q and k as it was.
"""

import re
from collections.abc import Callable, Mapping
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
    "src_vocab_size": 32000,
    "emb_dim": 4096,
    "norm_eps": 1e-5,
    "nheads": 32,
    "kvheads": 0,
    "nlayers": 32,
    "hidden_grow_factor": 8 / 3,
    "multiple_of": 256,
    "max_expected_seq_len": 4096,
    "attn_bias": False,
    "mlp_bias": False,
    "tie_heads": False,
    "rope_theta": 10000.0,
}

_LLAMA3 = {"src_vocab_size": 128256, "max_expected_seq_len": 8192, "rope_theta": 500000.0}


def _sizes(emb_dim: int, nheads: int, nlayers: int, grow: float, kvheads: int = 0) -> dict:
    return {
        "emb_dim": emb_dim,
        "nheads": nheads,
        "nlayers": nlayers,
        "hidden_grow_factor": grow,
        "kvheads": kvheads,
    }


FLAVORS: dict[str, dict[str, Any]] = {
    "llama2_70b": {**_sizes(8192, 64, 80, 28672 / 8192, 8), "multiple_of": 4096},
    "llama2_34b": _sizes(8192, 64, 48, 22016 / 8192, 8),
    "llama2_13b": _sizes(5120, 40, 40, 13824 / 5120),
    "llama2_7b": _sizes(4096, 32, 32, 11008 / 4096),
    "llama2_1.4b": _sizes(2048, 16, 24, 3, 4),
    "llama3_8b": {**_LLAMA3, **_sizes(4096, 32, 32, 3.5, 8)},
    "llama3_1.8b": {**_LLAMA3, **_sizes(2048, 16, 24, 3.5, 8)},
    "llama3_3.2b": {**_LLAMA3, **_sizes(3072, 24, 24, 8 / 3, 8)},
    "llama3_70b": {**_LLAMA3, **_sizes(8192, 64, 80, 3.5, 8)},
    "llama3_194m_4k": {
        **_LLAMA3,
        **_sizes(1024, 8, 10, 8 / 3),
        "max_expected_seq_len": 4096,
    },
}
for _name in ("llama3_8b", "llama3_1.8b", "llama3_3.2b", "llama3_70b"):
    FLAVORS[f"{_name}_4k"] = {**FLAVORS[_name], "max_expected_seq_len": 4096}

_NORMS = {"ln": "input_layernorm", "ff_ln": "post_attention_layernorm"}


def recognises(names: set[str]) -> bool:
    return "dec_norm.alpha" in names and "shared.emb.weight" in names


def convert(tensors: Mapping[str, LazyTensor], options: Options, _embedded: Any) -> Conversion:
    if options.model not in (None, "dyt"):
        raise ConvertError(f"--model is {options.model}; the tensors are those of dyt")
    args = _model_args(options)
    weights, head = _renamed(tensors, args)
    config = _config(args, weights, head)
    check_tensors(weights, expected_shapes(config), "dyt (Llama with Dynamic Tanh)")
    config["torch_dtype"] = main_dtype(list(weights.values()))
    return Conversion(config, list(weights.values()))


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of the written checkpoint, by name."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "model.norm.alpha": (1,),
    }
    if config["use_shared_scale"]:
        shapes["model.shared_scale"] = (1,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    linears = {
        "self_attn.q_proj": ((hidden, hidden), config["attention_bias"]),
        "self_attn.k_proj": ((kv_width, hidden), config["attention_bias"]),
        "self_attn.v_proj": ((kv_width, hidden), config["attention_bias"]),
        "self_attn.o_proj": ((hidden, hidden), config["attention_bias"]),
        "mlp.gate_proj": ((width, hidden), config["mlp_bias"]),
        "mlp.up_proj": ((width, hidden), config["mlp_bias"]),
        "mlp.down_proj": ((hidden, width), config["mlp_bias"]),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, (shape, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
        for name in _NORMS.values():
            shapes[f"{prefix}{name}.weight"] = (hidden,)
            shapes[f"{prefix}{name}.alpha"] = (1,)
    return shapes


def halves_from_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from the order of pairs (2i, 2i+1) to that of halves (i, i + d/2)."""
    head_dim = rows.shape[0] // heads
    paired = rows.reshape(heads, head_dim // 2, 2, *rows.shape[1:])
    return np.swapaxes(paired, 1, 2).reshape(rows.shape)


def _model_args(options: Options) -> dict[str, Any]:
    if options.model_args is not None:
        for key in ("emb_dim", "nlayers", "nheads"):
            if key not in options.model_args:
                raise ConvertError(f"--model-args: '{key}' is missing")
        given = options.model_args
    elif options.flavor in FLAVORS:
        given = FLAVORS[options.flavor]
    else:
        raise ConvertError(
            f"--flavor is {options.flavor or 'missing'}; the DyT code has {', '.join(FLAVORS)}; "
            "other sizes are given by --model-args"
        )
    args = merge_args(DEFAULTS, given, "--model-args")
    if options.max_seq_len is not None:
        args["max_expected_seq_len"] = options.max_seq_len
    need_positive(args, ("emb_dim", "nlayers", "nheads", "max_expected_seq_len"), "model arguments")
    heads, kv_heads = args["nheads"], args["kvheads"] or args["nheads"]
    if args["emb_dim"] % (2 * heads) or heads % kv_heads:
        raise ConvertError(
            f"emb_dim {args['emb_dim']}, nheads {heads} and kvheads {kv_heads} do not divide one "
            "another"
        )
    return args


def _renamed(
    tensors: Mapping[str, LazyTensor], args: Mapping[str, Any]
) -> tuple[dict[str, LazyTensor], LazyTensor | None]:
    direct = {
        "shared.emb.weight": "model.embed_tokens.weight",
        "dec_norm.weight": "model.norm.weight",
        "dec_norm.alpha": "model.norm.alpha",
        "shared_scale": "model.shared_scale",
    }
    out: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"layers\.(0|[1-9]\d*)\.(.+)\.(weight|bias|alpha)", name)
        if name in direct:
            out[direct[name]] = tensor.renamed(direct[name])
        elif name == "shared.head.weight":
            if not args["tie_heads"]:
                out["lm_head.weight"] = tensor.renamed("lm_head.weight")
        elif match:
            for piece in _layer_tensors(
                tensor, f"model.layers.{match[1]}.", match[2], match[3], args
            ):
                out[piece.name] = piece
        elif not name.startswith("rot_emb."):
            raise ConvertError(
                f"tensor '{name}' {tensor.shape} is not part of the DyT code's Llama"
            )
    return out, tensors.get("shared.head.weight")


def _layer_tensors(
    tensor: LazyTensor, prefix: str, module: str, kind: str, args: Mapping[str, Any]
) -> list[LazyTensor]:
    heads, kv_heads = args["nheads"], args["kvheads"] or args["nheads"]
    head_dim = args["emb_dim"] // heads
    whole: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray] | None]] = {
        "ln": (_NORMS["ln"], None),
        "ff_ln": (_NORMS["ff_ln"], None),
        "attn.in_proj.query": ("self_attn.q_proj", lambda x: halves_from_pairs(x, heads)),
        "attn.in_proj.key": ("self_attn.k_proj", lambda x: halves_from_pairs(x, kv_heads)),
        "attn.in_proj.value": ("self_attn.v_proj", None),
        "attn.dense": ("self_attn.o_proj", None),
        "ff_sub_layer.wg": ("mlp.gate_proj", None),
        "ff_sub_layer.w1": ("mlp.up_proj", None),
        "ff_sub_layer.w2": ("mlp.down_proj", None),
    }
    fused = {
        "attn.in_proj.qkv_fused": (
            ("attn.in_proj.query", heads * head_dim),
            ("attn.in_proj.key", kv_heads * head_dim),
            ("attn.in_proj.value", kv_heads * head_dim),
        ),
        "ff_sub_layer.wg1_fused": (
            ("ff_sub_layer.wg", (tensor.shape or (0,))[0] // 2),
            ("ff_sub_layer.w1", (tensor.shape or (0,))[0] // 2),
        ),
    }
    if module in fused:
        if not tensor.shape or tensor.shape[0] != sum(rows for _, rows in fused[module]):
            raise ConvertError(
                f"tensor '{module}.{kind}' of {prefix[:-1]} has shape {tensor.shape}, which these "
                "sizes cannot split"
            )
        pieces, start = [], 0
        for part, rows in fused[module]:
            sliced = tensor.rows(part, start, start + rows)
            pieces += _layer_tensors(sliced, prefix, part, kind, args)
            start += rows
        return pieces
    if module not in whole:
        raise ConvertError(f"tensor '{prefix}{module}.{kind}' is not part of the DyT code's Llama")
    target, change = whole[module]
    name = f"{prefix}{target}.{kind}"
    return [tensor.mapped(name, change) if change else tensor.renamed(name)]


def _config(
    args: Mapping[str, Any], weights: Mapping[str, LazyTensor], head: LazyTensor | None
) -> dict[str, Any]:
    width = int(args["hidden_grow_factor"] * args["emb_dim"])
    step = args["multiple_of"]
    if step:
        width = step * ((width + step - 1) // step)
    embedding = weights["model.embed_tokens.weight"]
    if not args["tie_heads"] and head is None:
        raise ConvertError("tensor 'shared.head.weight' is missing and tie_heads is false")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "norm_type": "dyt",
        "use_shared_scale": "model.shared_scale" in weights,
        "hidden_act": "silu",
        "hidden_size": args["emb_dim"],
        "intermediate_size": width,
        "num_hidden_layers": args["nlayers"],
        "num_attention_heads": args["nheads"],
        "num_key_value_heads": args["kvheads"] or args["nheads"],
        "head_dim": args["emb_dim"] // args["nheads"],
        "vocab_size": (embedding.shape or (0,))[0],
        "max_position_embeddings": args["max_expected_seq_len"],
        "rms_norm_eps": args["norm_eps"],
        "rope_theta": args["rope_theta"],
        "rope_scaling": None,
        "attention_bias": args["attn_bias"],
        "mlp_bias": args["mlp_bias"],
        "tie_word_embeddings": args["tie_heads"],
        "torch_dtype": "float32",
    }
