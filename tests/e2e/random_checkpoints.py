# SPDX-License-Identifier: Apache-2.0
"""Draws random checkpoints: any mix of the settings that docs/models.md lists, random weights, HF or torchtitan names."""
import math

import numpy as np

HF_TYPES = ("rms", "bhyt", "bhytline", "bhytstar", "bhytstar_mean", "lns", "peri", "dyt")
OTHER = ("SimpleGPT", "PreNormTransformer", "PreQKNormTransformer", "nanogpt", "simple_nanogpt")
VOCAB = 96


class Draw:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, *options):
        return options[self.rng.integers(len(options))]

    def weight(self, *shape, std=0.2):
        return (self.rng.standard_normal(shape) * std).astype(np.float32)

    def around_one(self, *shape):
        return (1 + 0.3 * self.rng.standard_normal(shape)).astype(np.float32)


def shape_of(draw):
    kv_heads = draw.pick(1, 2, 3)
    heads = kv_heads * draw.pick(1, 2, 3)
    return heads, kv_heads, draw.pick(4, 8, 12, 16)


def hf_config(draw, norm_type):
    heads, kv_heads, head_dim = shape_of(draw)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "float32",
        "hidden_size": draw.pick(heads * head_dim, 20, 36, 100), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": draw.pick(24, 33, 64),
        "num_hidden_layers": draw.pick(1, 2, 3, 4), "vocab_size": VOCAB, "max_position_embeddings": 64,
        "rms_norm_eps": draw.pick(1e-5, 1e-6), "rope_theta": draw.pick(10000.0, 500000.0),
        "rope_scaling": rope_scaling(draw), "tie_word_embeddings": draw.pick(True, False),
        "attention_bias": draw.pick(True, False), "mlp_bias": draw.pick(True, False),
        "bos_token_id": 1, "eos_token_id": 2,
    }
    if norm_type != "rms" or draw.pick(True, False):
        config["norm_type"] = norm_type
    if norm_type.startswith("bhyt"):
        config.update(bhyt_options(draw, norm_type, config["num_hidden_layers"]))
    return config


def rope_scaling(draw):
    key = draw.pick("type", "rope_type")
    kind = draw.pick(None, None, "linear", "llama3", "yarn", "dynamic")
    if kind is None:
        return None
    scaling = {key: kind, "factor": draw.pick(2.0, 8.0)}
    if kind == "llama3":
        scaling.update(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    elif kind == "yarn":
        scaling.update(original_max_position_embeddings=32)
    return scaling


def bhyt_options(draw, norm_type, layers):
    options = {
        "input_layer_lam": 2.0, "post_layer_lam": 1.0, "last_layer_lam": draw.pick(0.0, 1.5),
        "learnable_lam": draw.pick(True, False), "seq_len": draw.pick(10, 64, 256),
        "bhyt_kappa": draw.pick(10.0, 4.0), "bhyt_kappa_schedule": draw.pick(None, "None", "decay", "grow", "mild_grow"),
        "inference_var_dtype": draw.pick("float32", "input"),
    }
    if draw.pick(True, False):
        options["use_shared_scale"] = True
    if norm_type in ("bhyt", "bhytline"):
        options["var_approx_method"] = draw.pick("baseline", "None", "beta", "eta", "residual_aware")
        options["use_gamma_var"] = draw.pick(True, False)
        if layers > 1 and draw.pick(True, False):
            first = int(draw.rng.integers(layers))
            options["bhyt_layer_range"] = [first, int(draw.rng.integers(first, layers))]
            options["fallback_norm_type"] = draw.pick("rms", "bhytstar")
        if draw.pick(True, False):
            options["var_approx_calibration"] = [float(x) for x in draw.rng.uniform(0.5, 1.5, draw.pick(1, layers))]
        options["var_approx_exact_layers"] = draw.pick(0, 0, 1)
        options["var_approx_exact_layer_list"] = draw.pick(None, "None", str(layers - 1))
    return {k: v for k, v in options.items() if v is not None or draw.pick(True, False)}


def norm_tensors(draw, config, name, width, kind, out):
    out[name + ".weight"] = draw.around_one(width)
    if kind == "dyt":
        out[name + ".alpha"] = draw.rng.uniform(0.3, 1.2, 1).astype(np.float32)
    if kind.startswith("bhyt"):
        lam = draw.rng.uniform(0.8, 3.0, 1).astype(np.float32)
        scalar = name != "model.norm" and not config.get("learnable_lam", True)
        out[name + ".lam"] = lam.reshape(()) if scalar else lam


def hf_tensors(draw, config, layer_type):
    c, w = config, {}
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d

    def linear(name, n, k, bias):
        w[name + ".weight"] = draw.weight(n, k, std=1.2 / math.sqrt(k))
        if bias:
            w[name + ".bias"] = draw.weight(n)

    w["model.embed_tokens.weight"] = draw.weight(c["vocab_size"], hidden, std=0.5)
    for i in range(c["num_hidden_layers"]):
        p, kind = f"model.layers.{i}.", layer_type(i)
        for name, n, k in (("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden), ("o_proj", hidden, q)):
            linear(p + "self_attn." + name, n, k, c["attention_bias"])
        for name, n, k in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
            linear(p + "mlp." + name, n, k, c["mlp_bias"])
        sites = ["input_layernorm", "post_attention_layernorm"]
        if kind == "peri":
            sites += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for site in sites:
            norm_tensors(draw, c, p + site, hidden, kind, w)
        method = c.get("var_approx_method")
        if kind in ("bhyt", "bhytline"):
            for name in {"beta": ["var_beta"], "eta": ["var_eta"],
                         "residual_aware": ["var_alpha", "var_cross_beta"]}.get(method, []):
                w[p + name] = draw.rng.uniform(0.3, 1.2, ()).astype(np.float32)
    norm_type = c.get("norm_type", "rms")
    final = "dyt" if norm_type == "dyt" else "rms"
    if norm_type in ("bhyt", "bhytline") and (c.get("last_layer_lam") or 0) > 0:
        final = "bhyt"
    norm_tensors(draw, c, "model.norm", hidden, final, w)
    if c.get("use_shared_scale"):
        w["model.shared_scale"] = draw.around_one(1)
    if norm_type == "peri" and draw.pick(True, False):
        w["model.embed_layernorm.weight"] = draw.around_one(hidden)
    if not c["tie_word_embeddings"]:
        w["lm_head.weight"] = draw.weight(c["vocab_size"], hidden)
    return w


def torchtitan(draw, architecture):
    heads, kv_heads, d = shape_of(draw)
    dim, multiple = heads * d, draw.pick(4, 8)
    a = {"dim": dim, "n_layers": draw.pick(1, 2, 3), "n_heads": heads, "n_kv_heads": draw.pick(kv_heads, kv_heads) if
         kv_heads != heads else None, "vocab_size": VOCAB, "multiple_of": multiple,
         "ffn_dim_multiplier": draw.pick(None, 1.3, 0.65), "norm_eps": 1e-5, "rope_theta": draw.pick(10000, 500000),
         "max_batch_size": 32, "max_seq_len": 64, "depth_init": True,
         "norm_type": draw.pick("rmsnorm", "fused_rmsnorm", "layernorm", "np_layernorm")}
    inner = int(2 * 4 * dim / 3)
    if a["ffn_dim_multiplier"] is not None:
        inner = int(a["ffn_dim_multiplier"] * inner)
    inner = multiple * ((inner + multiple - 1) // multiple)
    w, kv = {}, kv_heads * d

    def norm(name, width):
        if a["norm_type"] != "np_layernorm":
            w[name + ".weight"] = draw.around_one(width)

    def linear(name, n, k):
        w[name + ".weight"] = draw.weight(n, k, std=1.2 / math.sqrt(k))

    w["tok_embeddings.weight"] = draw.weight(VOCAB, dim, std=0.5)
    for i in range(a["n_layers"]):
        att, ff = f"layers.{i}.attention.", f"layers.{i}.feed_forward."
        if architecture == "SimpleGPT":
            for name, n, k in ((att + "snq", dim, dim), (att + "snk", kv, dim), (att + "snv", kv, dim), (att + "sno", dim, dim),
                               (ff + "sn1", inner, dim), (ff + "sn3", inner, dim), (ff + "sn2", dim, inner)):
                linear(name + ".lin", n, k)
                norm(name + ".norm", n)
            continue
        for name, n, k in ((att + "wq", dim, dim), (att + "wk", kv, dim), (att + "wv", kv, dim), (att + "wo", dim, dim),
                           (ff + "w1", inner, dim), (ff + "w3", inner, dim), (ff + "w2", dim, inner)):
            linear(name, n, k)
        norm(f"layers.{i}.attention_norm", dim)
        norm(f"layers.{i}.ffn_norm", dim)
        if architecture == "PreQKNormTransformer":
            norm(att + "q_norm", dim)
            norm(att + "k_norm", kv)
    norm("norm", dim)
    linear("output", VOCAB, dim)
    config = {"architecture": architecture, "model_name": "llama3_random", "torch_dtype": "float32", "model_args": a}
    return config, w


def nanogpt(draw, architecture):
    heads, _, d = shape_of(draw)
    width, layers = heads * d, draw.pick(1, 2, 3)
    simple, bias = architecture == "simple_nanogpt", draw.pick(True, False)
    a = {"n_layer": layers, "n_head": heads, "n_embd": width, "block_size": 64, "vocab_size": VOCAB, "bias": bias,
         "dropout": 0.0}
    w = {"transformer.wte.weight": draw.weight(VOCAB, width, std=0.5), "transformer.wpe.weight": draw.weight(64, width)}

    def linear(name, n, k):
        w[name + ".weight"] = draw.weight(n, k, std=1.2 / math.sqrt(k))
        if bias:
            w[name + ".bias"] = draw.weight(n)

    def layer_norm(name):
        w[name + ".weight"] = draw.around_one(width)
        if bias and not simple:
            w[name + ".bias"] = draw.weight(width)

    for i in range(layers):
        p = f"transformer.h.{i}."
        if simple:
            for name, n, k in (("attn.q", width, width), ("attn.k", width, width), ("attn.v", width, width),
                               ("attn.c_proj", width, width), ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
                linear(p + name + ".lin", n, k)
                w[p + name + ".norm.weight"] = draw.around_one(n)
            continue
        for name, n, k in (("attn.c_attn", 3 * width, width), ("attn.c_proj", width, width),
                           ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
            linear(p + name, n, k)
        layer_norm(p + "ln_1")
        layer_norm(p + "ln_2")
    layer_norm("transformer.ln_f")
    return {"architecture": architecture, "torch_dtype": "float32", "model_args": a}, w


def checkpoint(kind, seed):
    """(config, tensors) of one random model; `kind` is one of HF_TYPES or OTHER."""
    draw = Draw(seed)
    if kind in ("nanogpt", "simple_nanogpt"):
        return nanogpt(draw, kind)
    if kind in OTHER:
        return torchtitan(draw, kind)
    config = hf_config(draw, kind)
    import formulas
    layer_type = formulas.HfLlama(config, {}).layer_type
    return config, hf_tensors(draw, config, layer_type)
