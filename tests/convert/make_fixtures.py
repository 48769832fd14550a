#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/convert/fixtures with PyTorch: run by hand when a fixture changes, never by the
tests.

Each fixture is `<name>.pt` as training code saves it, and `<name>.safetensors`: what it must
convert to.
"""

import collections
import io
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "fixtures"


def random(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return (torch.randn(*shape) * 0.2).to(dtype)


def save(name: str, saved: object, expected: dict[str, torch.Tensor]) -> None:
    torch.save(saved, FOLDER / f"{name}.pt")
    plain = {key: value.detach().contiguous().clone() for key, value in expected.items()}
    save_file(plain, FOLDER / f"{name}.safetensors")


def nanogpt_weights(args: dict) -> dict[str, torch.Tensor]:
    width = args["n_embd"]
    weights = {
        "transformer.wte.weight": random(args["vocab_size"], width),
        "transformer.wpe.weight": random(args["block_size"], width),
        "transformer.ln_f.weight": 1 + random(width),
    }
    for layer in range(args["n_layer"]):
        prefix = f"transformer.h.{layer}."
        weights[f"{prefix}ln_1.weight"] = 1 + random(width)
        weights[f"{prefix}attn.c_attn.weight"] = random(3 * width, width)
        weights[f"{prefix}attn.c_proj.weight"] = random(width, width)
        weights[f"{prefix}ln_2.weight"] = 1 + random(width)
        weights[f"{prefix}mlp.c_fc.weight"] = random(4 * width, width)
        weights[f"{prefix}mlp.c_proj.weight"] = random(width, 4 * width)
    if args["bias"]:
        for name in [n for n in weights if "wte" not in n and "wpe" not in n]:
            weights[name.replace(".weight", ".bias")] = random(weights[name].shape[0])
    return weights


def nanogpt() -> None:
    """As nanoGPT's train.py saves a compiled model: prefix, tied head, optimizer state."""
    args = dict(
        n_layer=2, n_head=2, n_embd=16, block_size=24, bias=True, vocab_size=40, dropout=0.1
    )
    weights = nanogpt_weights(args)
    state = collections.OrderedDict((f"_orig_mod.{k}", v) for k, v in weights.items())
    state["_orig_mod.lm_head.weight"] = state["_orig_mod.transformer.wte.weight"]
    parameter = torch.nn.Parameter(random(4, 4))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.9, 0.95))
    parameter.grad = random(4, 4)
    optimizer.step()
    checkpoint = {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "model_args": args,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(3.25),
        "config": {"out_dir": "out", "learning_rate": 6e-4, "compile": True, "dtype": "bfloat16"},
    }
    save("nanogpt", checkpoint, weights)


def simple_nanogpt() -> None:
    args = dict(
        n_layer=2, n_head=2, n_embd=16, block_size=24, bias=False, vocab_size=40, dropout=0.0
    )
    width = args["n_embd"]
    weights = {
        "transformer.wte.weight": random(args["vocab_size"], width, dtype=torch.bfloat16),
        "transformer.wpe.weight": random(args["block_size"], width, dtype=torch.bfloat16),
        "transformer.ln_f.weight": (1 + random(width)).to(torch.bfloat16),
    }
    shapes = {f"attn.{name}": (width, width) for name in ("q", "k", "v", "c_proj")}
    shapes |= {"mlp.c_fc": (4 * width, width), "mlp.c_proj": (width, 4 * width)}
    for layer in range(args["n_layer"]):
        for name, shape in shapes.items():
            prefix = f"transformer.h.{layer}.{name}."
            weights[f"{prefix}lin.weight"] = random(*shape, dtype=torch.bfloat16)
            weights[f"{prefix}norm.weight"] = (1 + random(shape[0])).to(torch.bfloat16)
    state = dict(weights) | {"lm_head.weight": weights["transformer.wte.weight"].clone()}
    save("simple_nanogpt", {"model": state, "model_args": args}, weights)


def prenorm() -> None:
    """A torchtitan state dict: PreNorm, layernorm, one .pt with a full checkpoint's prefix."""
    dim, heads, kv_heads, width, vocab = 16, 4, 2, 48, 24
    weights = {
        "tok_embeddings.weight": random(vocab, dim),
        "norm.weight": 1 + random(dim),
        "output.weight": random(vocab, dim),
    }
    for layer in range(2):
        prefix = f"layers.{layer}."
        kv_width = kv_heads * dim // heads
        for name, rows in {"q": dim, "k": kv_width, "v": kv_width, "o": dim}.items():
            weights[f"{prefix}attention.w{name}.weight"] = random(rows, dim)
        for name, shape in {"1": (width, dim), "2": (dim, width), "3": (width, dim)}.items():
            weights[f"{prefix}feed_forward.w{name}.weight"] = random(*shape)
        weights[f"{prefix}attention_norm.weight"] = 1 + random(dim)
        weights[f"{prefix}ffn_norm.weight"] = 1 + random(dim)
    positions = torch.arange(2 * 20).float()
    angles = torch.outer(positions, 1.0 / (10000 ** (torch.arange(0, 4, 2).float() / 4)))
    state = {
        f"model.{k.replace('layers.1.', 'layers.1._orig_mod.')}": v for k, v in weights.items()
    }
    state["model.freqs_cis"] = torch.polar(torch.ones_like(angles), angles)
    save("prenorm", state, weights)
    # The same as PyTorch's own dcp_to_torch makes it from a full checkpoint: nested, state beside.
    nested = {
        "model": {"freqs_cis": state["model.freqs_cis"]} | weights,
        "train_state": {"step": torch.tensor(10), "log_steps": io.BytesIO(b"bytes")},
        "lr_scheduler": {"base_lrs": [1e-3], "last_epoch": 2, "lr_lambdas": [None]},
        "dataloader": {"dp_rank_0": b"more bytes", "numpy": np.float64(0.5)},
    }
    torch.save(nested, FOLDER / "prenorm_nested.pt")


def dyt() -> None:
    """The DyT code's Llama, projections fused; expected q and k rows are in halves' order."""
    hidden, heads, kv_heads, width, vocab = 16, 4, 2, 24, 32
    head_dim = hidden // heads

    def halves(rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(rows)
        for row in range(rows.shape[0]):
            head, place = divmod(row, head_dim)
            out[head * head_dim + place // 2 + (place % 2) * head_dim // 2] = rows[row]
        return out

    state = {
        "shared.emb.weight": random(vocab, hidden),
        "shared.head.weight": random(vocab, hidden),
        "shared_scale": torch.tensor([5.5]),
        "dec_norm.alpha": torch.tensor([0.3]),
        "dec_norm.weight": 1 + random(hidden),
    }
    names = {
        "shared.emb.weight": "model.embed_tokens.weight",
        "shared.head.weight": "lm_head.weight",
    }
    names |= {"shared_scale": "model.shared_scale", "dec_norm.alpha": "model.norm.alpha"}
    names |= {"dec_norm.weight": "model.norm.weight"}
    expected = {new: state[old] for old, new in names.items()}
    for layer in range(2):
        old, new = f"layers.{layer}.", f"model.layers.{layer}."
        for ln, hf in {"ln": "input_layernorm", "ff_ln": "post_attention_layernorm"}.items():
            for kind, value in {"weight": 1 + random(hidden), "alpha": 0.5 + random(1)}.items():
                state[f"{old}{ln}.{kind}"] = expected[f"{new}{hf}.{kind}"] = value
        q, k = random(hidden, hidden), random(kv_heads * head_dim, hidden)
        v, o = random(kv_heads * head_dim, hidden), random(hidden, hidden)
        gate, up, down = random(width, hidden), random(width, hidden), random(hidden, width)
        state[f"{old}attn.in_proj.qkv_fused.weight"] = torch.cat([q, k, v])
        state[f"{old}attn.dense.weight"] = o
        state[f"{old}ff_sub_layer.wg1_fused.weight"] = torch.cat([gate, up])
        state[f"{old}ff_sub_layer.w2.weight"] = down
        for name, value in {"q": halves(q), "k": halves(k), "v": v, "o": o}.items():
            expected[f"{new}self_attn.{name}_proj.weight"] = value
        for name, value in {"gate": gate, "up": up, "down": down}.items():
            expected[f"{new}mlp.{name}_proj.weight"] = value
    save("dyt", {"step": 5, "model_state": state}, expected)


def views() -> None:
    """Every element type; strides, offsets and storages that several tensors share."""
    base = torch.arange(60, dtype=torch.float32)
    tensors = {
        "base": base.view(6, 10),
        "transposed": base.view(6, 10).t(),
        "offset": base[7:19].view(3, 4),
        "stepped": base[::7],
        "expanded": torch.tensor([[1.5], [2.5]]).expand(2, 3),
        "scalar": torch.tensor(4.25, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    }
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensors[str(dtype).split(".")[1]] = torch.randn(5).to(dtype)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        tensors[str(dtype).split(".")[1]] = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    save("views", tensors, {k: v.detach() for k, v in tensors.items()})
    torch.save(torch.polar(torch.ones(3), torch.arange(3.0)), FOLDER / "complex64.pt")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(90)
    for make in (nanogpt, simple_nanogpt, prenorm, dyt, views):
        make()
