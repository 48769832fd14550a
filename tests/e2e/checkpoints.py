# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints for tests: random Llamas with one thing changed, a model that follows a script, and files
that no honest tool would write. Numpy and safetensors only."""
import json
import pathlib
import shutil
import struct

import numpy as np
from safetensors.numpy import save_file

import wire

DEMO_TOKENIZER = wire.ROOT / "models/demo/bhyt-kjv"


def copy_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_TOKENIZER / name, pathlib.Path(folder) / name)


def write(folder, config, tensors):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def llama_config(hidden, layers, vocab, heads=4, kv_heads=2, max_positions=512, tied=False, **extra):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
            "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
            "max_position_embeddings": max_positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1, **extra}


def llama_tensors(config, seed=0):
    rng = np.random.default_rng(seed)
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = hidden // heads

    def weight(*shape):
        return rng.normal(0, 0.15, shape).astype(np.float32)

    def gamma():
        return (1 + rng.normal(0, 0.2, hidden)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": weight(vocab, hidden), "model.norm.weight": gamma()}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors.update({
            at + "input_layernorm.weight": gamma(), at + "post_attention_layernorm.weight": gamma(),
            at + "self_attn.q_proj.weight": weight(heads * head_dim, hidden),
            at + "self_attn.k_proj.weight": weight(kv_heads * head_dim, hidden),
            at + "self_attn.v_proj.weight": weight(kv_heads * head_dim, hidden),
            at + "self_attn.o_proj.weight": weight(hidden, heads * head_dim),
            at + "mlp.gate_proj.weight": weight(ffn, hidden), at + "mlp.up_proj.weight": weight(ffn, hidden),
            at + "mlp.down_proj.weight": weight(hidden, ffn)})
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = weight(vocab, hidden)
    return tensors


def llama(folder, hidden=64, layers=2, vocab=256, seed=0, tokenizer=False, change=None, **config_fields):
    """change(config, tensors) may alter both before they are written."""
    config = llama_config(hidden, layers, vocab, **config_fields)
    tensors = llama_tensors(config, seed)
    if change:
        change(config, tensors)
    write(folder, config, tensors)
    if tokenizer:
        copy_tokenizer(folder)
    return pathlib.Path(folder)


def scripted(folder, script, vocab=2048, hidden=128):
    """A nanoGPT model that says `script` whatever it is told: after a prompt of n tokens come script[n - 1:].

    Attention and MLP are zero. The learned position p is the (tied) embedding of script[p], twenty times over, so that
    the logits peak at script[p]. Past the script's end it repeats its last token.
    """
    rng = np.random.default_rng(11)
    positions = len(script) + 64
    said = list(script) + [script[-1]] * (positions - len(script))
    wte = rng.normal(0, 1, (vocab, hidden)).astype(np.float32)
    wte -= wte.mean(axis=1, keepdims=True)  # LayerNorm takes the mean away: do it first
    wte /= np.linalg.norm(wte, axis=1, keepdims=True)
    ones, at = np.ones(hidden, np.float32), "transformer.h.0."
    tensors = {"transformer.wte.weight": wte, "transformer.wpe.weight": 20 * wte[said],
               "transformer.ln_f.weight": ones, at + "ln_1.weight": ones, at + "ln_2.weight": ones,
               at + "attn.c_attn.weight": np.zeros((3 * hidden, hidden), np.float32),
               at + "attn.c_proj.weight": np.zeros((hidden, hidden), np.float32),
               at + "mlp.c_fc.weight": np.zeros((4 * hidden, hidden), np.float32),
               at + "mlp.c_proj.weight": np.zeros((hidden, 4 * hidden), np.float32)}
    config = {"architecture": "nanogpt", "model_name": "scripted", "torch_dtype": "float32",
              "model_args": {"n_layer": 1, "n_head": 2, "n_embd": hidden, "block_size": positions, "bias": False,
                             "vocab_size": vocab, "dropout": 0.0}}
    write(folder, config, tensors)
    copy_tokenizer(folder)
    return pathlib.Path(folder)


def raw_safetensors(path, header, data=b"", length=None):
    """header: an object or bytes. length: what the file claims about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
