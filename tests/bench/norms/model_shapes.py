# SPDX-License-Identifier: Apache-2.0
"""Model shapes, and config.json and tensor names of each norm type at a shape: one shape in every norm type, so that
only the norms differ. Standard library only."""
import json
import math
import struct

# hidden, layers, heads, kv_heads, inner, vocab
SHAPES = {
    "llama-1b": (2048, 16, 32, 8, 8192, 32000),
    "llama-3b": (3072, 28, 24, 8, 8192, 32000),
    "24x512": (512, 24, 8, 4, 1536, 32000),
    "tiny": (32, 2, 2, 1, 256, 96),
}
HUGGING_FACE = ("rms", "lns", "dyt", "bhyt", "bhytstar", "peri")
TORCHTITAN = {"simplegpt": "SimpleGPT", "prenorm": "PreNormTransformer", "preqknorm": "PreQKNormTransformer"}
KINDS = HUGGING_FACE + tuple(TORCHTITAN)


def config_of(shape: str, kind: str) -> dict:
    hidden, layers, heads, kv_heads, inner, vocab = SHAPES[shape]
    if kind in TORCHTITAN:
        arguments = {
            "dim": hidden,
            "n_layers": layers,
            "n_heads": heads,
            "n_kv_heads": kv_heads,
            "vocab_size": vocab,
            "multiple_of": 256,
            # torchtitan gives the inner width only by a formula; this factor yields `inner`.
            "ffn_dim_multiplier": inner / int(8 * hidden / 3),
            "norm_eps": 1e-5,
            "rope_theta": 500000,
            "max_batch_size": 32,
            "max_seq_len": 4096,
            "depth_init": True,
            "norm_type": "rmsnorm",
        }
        return {
            "architecture": TORCHTITAN[kind],
            "model_name": "llama3_random",
            "torch_dtype": "bfloat16",
            "model_args": arguments,
        }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "norm_type": kind,
    }
    if kind.startswith("bhyt"):
        config.update(input_layer_lam=2.0, post_layer_lam=1.0, last_layer_lam=0.0, learnable_lam=True, seq_len=4096)
        config["inference_var_dtype"] = "float32"
        if kind == "bhyt":
            config["var_approx_method"] = "baseline"
    return config


def shapes_of(shape: str, kind: str) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape; names as the family's own code has them (docs/models.md)."""
    hidden, layers, heads, kv_heads, inner, vocab = SHAPES[shape]
    kv = kv_heads * (hidden // heads)
    linears = {"q": (hidden, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, hidden)}
    linears |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    out: dict[str, tuple[int, ...]] = {}
    if kind in TORCHTITAN:
        letters = {"q": "q", "k": "k", "v": "v", "o": "o", "gate": "1", "up": "3", "down": "2"}
        out["tok_embeddings.weight"] = (vocab, hidden)
        for layer in range(layers):
            for name, size in linears.items():
                part = "attention." if name in "qkvo" else "feed_forward."
                at = f"layers.{layer}.{part}{'sn' if kind == 'simplegpt' else 'w'}{letters[name]}"
                if kind == "simplegpt":
                    out[at + ".lin.weight"] = size
                    out[at + ".norm.weight"] = size[:1]
                else:
                    out[at + ".weight"] = size
            if kind != "simplegpt":
                out[f"layers.{layer}.attention_norm.weight"] = out[f"layers.{layer}.ffn_norm.weight"] = (hidden,)
            if kind == "preqknorm":
                out[f"layers.{layer}.attention.q_norm.weight"] = (hidden,)
                out[f"layers.{layer}.attention.k_norm.weight"] = (kv,)
        out["norm.weight"] = (hidden,)
        out["output.weight"] = (vocab, hidden)
        return out
    out["model.embed_tokens.weight"] = (vocab, hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "peri":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for layer in range(layers):
        for name, size in linears.items():
            part = "self_attn" if name in "qkvo" else "mlp"
            out[f"model.layers.{layer}.{part}.{name}_proj.weight"] = size
        for norm in norms:
            at = f"model.layers.{layer}.{norm}"
            out[at + ".weight"] = (hidden,)
            if kind == "dyt":
                out[at + ".alpha"] = (1,)
            if kind.startswith("bhyt"):
                out[at + ".lam"] = (1,)
    out["model.norm.weight"] = (hidden,)
    if kind == "dyt":
        out["model.norm.alpha"] = (1,)
    out["lm_head.weight"] = (vocab, hidden)
    return out


def safetensors_header(tensors: dict) -> bytes:
    """What a safetensors file of these tensors, in bfloat16 and in this order, begins with."""
    header, offset = {}, 0
    for name, size in tensors.items():
        end = offset + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
