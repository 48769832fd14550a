# SPDX-License-Identifier: Apache-2.0
"""The models of docs/models.md in float64 numpy, written from the formulas alone: the oracle of the property test.

Slow and plain on purpose: no cache, no fusion, no folding, one whole forward pass per call. It shares no code with the
server. check_golden() below compares it with the outputs of the authors' own code before anything trusts it.
"""
import math

import numpy as np

F = np.float64


def rope_frequencies(config, head_dim):
    """(inverse frequencies [head_dim/2], attention factor), as transformers computes them (float32 base)."""
    theta = config.get("rope_theta", 10000.0)
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv = (np.float32(1.0) / np.float32(theta) ** exponent).astype(F)
    scaling = config.get("rope_scaling")
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if kind == "linear":
        return inv / scaling["factor"], 1.0
    if kind == "llama3":
        factor, low, high = (scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
        old = scaling["original_max_position_embeddings"]
        wavelength = 2 * math.pi / inv
        smooth = (old / wavelength - low) / (high - low)
        mid = (1 - smooth) * inv / factor + smooth * inv
        return np.where(wavelength > old / low, inv / factor, np.where(wavelength < old / high, inv, mid)), 1.0
    if kind == "yarn":
        return yarn_frequencies(scaling, config, theta, head_dim)
    assert kind in ("default", "none", "dynamic"), kind
    return inv, 1.0


def yarn_frequencies(scaling, config, theta, head_dim):
    factor = scaling["factor"]
    attention = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0
    old = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]

    def dimension(rotations):
        return head_dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow") or 1)), head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / ((high if high != low else high + 0.001) - low), 0, 1)
    base = theta ** (np.arange(0, head_dim, 2) / head_dim)
    return (1 / (factor * base)) * ramp + (1 / base) * (1 - ramp), attention


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, heads, kv_heads):
    """Causal; q [T, heads*D], k and v [T, kv_heads*D]."""
    t = q.shape[0]
    d = q.shape[1] // heads
    q = q.reshape(t, heads, d).transpose(1, 0, 2)
    k = np.repeat(k.reshape(t, kv_heads, d).transpose(1, 0, 2), heads // kv_heads, 0)
    v = np.repeat(v.reshape(t, kv_heads, d).transpose(1, 0, 2), heads // kv_heads, 0)
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    scores = np.where(np.tril(np.ones((t, t), bool)), scores, -np.inf)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(t, heads * d)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def mean_square(x):
    return (x * x).mean(-1, keepdims=True)


def rms(x, weight, eps):
    return x / np.sqrt(mean_square(x) + eps) * weight


def layer_norm(x, weight, bias, eps):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt(mean_square(c) + eps) * weight + bias


def rotate_half(x, heads, positions, inv, factor):
    t = x.shape[0]
    x = x.reshape(t, heads, -1)
    angle = positions[:, None, None] * inv
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(t, -1)


def rotate_interleaved(x, heads, positions, inv):
    t = x.shape[0]
    x = x.reshape(t, heads, -1)
    angle = positions[:, None, None] * inv
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
    out[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
    return out.reshape(t, -1)


class HfLlama:
    """Hugging Face names: rms, bhyt, bhytline, bhytstar, bhytstar_mean, lns, peri, dyt."""

    def __init__(self, config, tensors, seq_len=None):
        self.c = {k: (None if v == "None" else v) for k, v in config.items()}
        self.w = {k: np.asarray(v, F) for k, v in tensors.items()}
        c = self.c
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads") or self.heads
        self.d = c.get("head_dim") or c["hidden_size"] // self.heads
        self.layers = c["num_hidden_layers"]
        self.norm_type = c.get("norm_type") or "rms"
        self.seq_len = seq_len or c.get("seq_len")

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def inv_kappa(self, level):
        kappa = self.c.get("bhyt_kappa")
        kappa = 10.0 if kappa is None else kappa
        schedule = self.c.get("bhyt_kappa_schedule")
        return 1 / {"decay": kappa / math.sqrt(level), "grow": kappa * math.sqrt(level),
                    "mild_grow": kappa * level ** 0.25}.get(schedule, kappa)

    def layer_type(self, i):
        span = self.c.get("bhyt_layer_range")
        if span and self.norm_type in ("bhyt", "bhytline") and not span[0] <= i <= span[1]:
            return self.c.get("fallback_norm_type") or "rms"
        return self.norm_type

    def c_attn(self, i):
        p = f"model.layers.{i}.self_attn."
        v = self.w[p + "v_proj.weight"].reshape(self.kv_heads, self.d, -1)
        v = np.repeat(v, self.heads // self.kv_heads, 0).reshape(self.heads * self.d, -1)
        product = v.T @ self.w[p + "o_proj.weight"].T
        return (product * product).sum() / (self.seq_len * self.c["hidden_size"])

    def exact(self, i):
        listed = str(self.c.get("var_approx_exact_layer_list") or "")
        return i < (self.c.get("var_approx_exact_layers") or 0) or i in {int(x) for x in listed.split(",") if x.strip()}

    def plain_norm(self, kind, x, name, level):
        """Every norm that needs nothing but its own input."""
        w = self.w
        g = w[name + ".weight"]
        if kind in ("rms", "peri"):
            return rms(x, g, self.c["rms_norm_eps"])
        if kind == "lns":
            return rms(x, g, self.c["rms_norm_eps"]) / math.sqrt(level)
        if kind == "dyt":
            return g * np.tanh(w[name + ".alpha"] * x) + w.get(name + ".bias", 0.0)
        lam = w[name + ".lam"].reshape(())
        if kind == "bhytstar_mean":
            mean = x.mean(-1, keepdims=True)
            s = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
            return g * np.tanh(lam * x / (s / self.inv_kappa(level) + np.abs(mean)))
        return g * np.tanh(lam * self.inv_kappa(level) / np.sqrt(mean_square(x) + 1e-6) * x)

    def carried_variance(self, i, var):
        c, w, p = self.c, self.w, f"model.layers.{i}."
        lam = w[p + "input_layernorm.lam"].reshape(())
        gain = mean_square(w[p + "input_layernorm.weight"]) if c.get("use_gamma_var") else 1.0
        corr = self.c_attn(i) * (lam * self.inv_kappa(i + 1)) ** 2 * gain
        method = c.get("var_approx_method") or "baseline"
        if method == "beta":
            var = var + w[p + "var_beta"] * corr
        elif method == "eta":
            var = var * (1 + w[p + "var_eta"])
        elif method == "residual_aware":
            var = var * (1 + w[p + "var_cross_beta"]) + w[p + "var_alpha"] * corr
        else:
            assert method == "baseline", method
            var = var + corr
        calibration = c.get("var_approx_calibration")
        return var * calibration[i] if calibration and i < len(calibration) else var

    def attend(self, i, x):
        p = f"model.layers.{i}.self_attn."
        positions = np.arange(x.shape[0], dtype=F)
        inv, factor = rope_frequencies(self.c, self.d)
        q = rotate_half(self.linear(p + "q_proj", x), self.heads, positions, inv, factor)
        k = rotate_half(self.linear(p + "k_proj", x), self.kv_heads, positions, inv, factor)
        return self.linear(p + "o_proj", attention(q, k, self.linear(p + "v_proj", x), self.heads, self.kv_heads))

    def mlp(self, i, x):
        p = f"model.layers.{i}.mlp."
        return self.linear(p + "down_proj", silu(self.linear(p + "gate_proj", x)) * self.linear(p + "up_proj", x))

    def layer(self, i, x):
        p, kind = f"model.layers.{i}.", self.layer_type(i)
        if kind == "peri":
            a = self.attend(i, self.plain_norm(kind, x, p + "input_layernorm", i + 1))
            x = x + self.plain_norm(kind, a, p + "post_attention_layernorm", i + 1)
            m = self.mlp(i, self.plain_norm(kind, x, p + "pre_feedforward_layernorm", i + 1))
            return x + self.plain_norm(kind, m, p + "post_feedforward_layernorm", i + 1)
        var = mean_square(x)
        x = x + self.attend(i, self.plain_norm(kind, x, p + "input_layernorm", i + 1))
        name = p + "post_attention_layernorm"
        if kind in ("bhyt", "bhytline") and not self.exact(i):
            lam = self.w[name + ".lam"].reshape(())
            scale = lam * self.inv_kappa(i + 1) / np.sqrt(self.carried_variance(i, var) + 1e-6)
            h = self.w[name + ".weight"] * np.tanh(scale * x)
        else:
            h = self.plain_norm(kind, x, name, i + 1)
        return x + self.mlp(i, h)

    def forward(self, ids):
        w, c = self.w, self.c
        x = w["model.embed_tokens.weight"][ids]
        if "model.shared_scale" in w:
            x = x * w["model.shared_scale"]
        if "model.embed_layernorm.weight" in w:
            x = rms(x, w["model.embed_layernorm.weight"], c["rms_norm_eps"])
        for i in range(self.layers):
            x = self.layer(i, x)
        final = "rms"
        if self.norm_type in ("bhyt", "bhytline") and (c.get("last_layer_lam") or 0) > 0:
            final = "bhyt"
        elif self.norm_type == "dyt":
            final = "dyt"
        x = self.plain_norm(final, x, "model.norm", self.layers + 1)
        head = "model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"
        return x @ w[head].T


class Torchtitan:
    """SimpleGPT, PreNormTransformer, PreQKNormTransformer."""

    def __init__(self, config, tensors, seq_len=None):
        self.a, self.architecture = config["model_args"], config["architecture"]
        self.w = {k: np.asarray(v, F) for k, v in tensors.items()}
        self.heads = self.a["n_heads"]
        self.kv_heads = self.a["n_kv_heads"] or self.heads

    def norm(self, x, name):
        weight, eps = self.w.get(name + ".weight", 1.0), self.a["norm_eps"]
        if self.a["norm_type"].lower() in ("rmsnorm", "fused_rmsnorm"):
            return rms(x, weight, eps)
        return layer_norm(x, weight, 0.0, eps)

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def simple(self, x, name):
        return self.norm(self.linear(x, name + ".lin"), name + ".norm")

    def forward(self, ids):
        x = self.w["tok_embeddings.weight"][ids]
        positions = np.arange(len(ids), dtype=F)
        inv, _ = rope_frequencies({"rope_theta": self.a["rope_theta"]}, self.a["dim"] // self.heads)
        for i in range(self.a["n_layers"]):
            a, m = f"layers.{i}.attention.", f"layers.{i}.feed_forward."
            if self.architecture == "SimpleGPT":
                q, k, v = (self.simple(x, a + n) for n in ("snq", "snk", "snv"))
            else:
                h = self.norm(x, f"layers.{i}.attention_norm")
                q, k, v = (self.linear(h, a + n) for n in ("wq", "wk", "wv"))
                if self.architecture == "PreQKNormTransformer":
                    q, k = self.norm(q, a + "q_norm"), self.norm(k, a + "k_norm")
            q = rotate_interleaved(q, self.heads, positions, inv)
            k = rotate_interleaved(k, self.kv_heads, positions, inv)
            o = attention(q, k, v, self.heads, self.kv_heads)
            if self.architecture == "SimpleGPT":
                x = x + self.simple(o, a + "sno")
                x = x + self.simple(silu(self.simple(x, m + "sn1")) * self.simple(x, m + "sn3"), m + "sn2")
            else:
                x = x + self.linear(o, a + "wo")
                h = self.norm(x, f"layers.{i}.ffn_norm")
                x = x + self.linear(silu(self.linear(h, m + "w1")) * self.linear(h, m + "w3"), m + "w2")
        return self.linear(self.norm(x, "norm"), "output")


class NanoGpt:
    """nanogpt (GPT-2 shape) and simple_nanogpt (every linear followed by its norm)."""

    def __init__(self, config, tensors, seq_len=None):
        self.a, self.simple = config["model_args"], config["architecture"] == "simple_nanogpt"
        self.w = {k: np.asarray(v, F) for k, v in tensors.items()}

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        weight, bias = self.w[name + ".weight"], self.w.get(name + ".bias", 0.0)
        return rms(x, weight, 1e-5) if self.simple else layer_norm(x, weight, bias, 1e-5)

    def block_linear(self, x, name):
        return self.norm(self.linear(x, name + ".lin"), name + ".norm") if self.simple else self.linear(x, name)

    def forward(self, ids):
        w, heads, width = self.w, self.a["n_head"], self.a["n_embd"]
        x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
        for i in range(self.a["n_layer"]):
            p = f"transformer.h.{i}."
            if self.simple:
                q, k, v = (self.block_linear(x, p + "attn." + n) for n in "qkv")
            else:
                fused = self.linear(self.norm(x, p + "ln_1"), p + "attn.c_attn")
                q, k, v = fused[:, :width], fused[:, width:2 * width], fused[:, 2 * width:]
            x = x + self.block_linear(attention(q, k, v, heads, heads), p + "attn.c_proj")
            h = x if self.simple else self.norm(x, p + "ln_2")
            x = x + self.block_linear(gelu(self.block_linear(h, p + "mlp.c_fc")), p + "mlp.c_proj")
        return self.norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def make(config, tensors, seq_len=None):
    architecture = config.get("architecture")
    if architecture in ("nanogpt", "simple_nanogpt"):
        return NanoGpt(config, tensors)
    return (Torchtitan if architecture else HfLlama)(config, tensors, seq_len)


def log_softmax(logits):
    m = logits.max(-1, keepdims=True)
    return logits - m - np.log(np.exp(logits - m).sum(-1, keepdims=True))
