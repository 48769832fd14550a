# SPDX-License-Identifier: Apache-2.0
"""Small PyTorch models of what no authors' code covers, straight from the formulas, in float64.

Llama with LNS, Peri-LN, DyT or BHyT* as the paper writes it; GPT-2's shape as nanoGPT has it; and
SimpleGPT on nanoGPT. A forward pass takes one sequence of ids and recomputes everything: slow, and
without any cache that could be wrong. Formulas and tensor names: see each norm below.
"""

import math

import torch

F = torch.nn.functional


class Model:
    """`weights` by name in float64. `seen` has named intermediate results of the last forward."""

    def __init__(self, config: dict, weights: dict[str, torch.Tensor]):
        self.config = config
        self.w = {name: value.double() for name, value in weights.items()}
        self.seen: dict[str, torch.Tensor] = {}

    def see(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self.seen[name] = value
        return value

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def rms(self, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
        return self.w[f"{name}.weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention; [heads, tokens, head_dim] with as many kv heads as divide the heads."""
        group = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return mixed.transpose(0, 1).flatten(1)


class Llama(Model):
    """Hugging Face's Llama names and rotary halves, with the norms of `norm_type`."""

    def norm(self, module: str, layer: int, x: torch.Tensor) -> torch.Tensor:
        """`layer` counts from 0; the final norm has layer == num_hidden_layers."""
        kind, eps = self.config["norm_type"], self.config["rms_norm_eps"]
        final = layer == self.config["num_hidden_layers"]
        weight = self.w[f"{module}.weight"]
        if kind == "dyt":  # arXiv 2503.10622: weight * tanh(alpha * x) + bias
            return weight * torch.tanh(self.w[f"{module}.alpha"] * x) + self.w.get(
                f"{module}.bias", 0
            )
        if kind == "lns" and not final:  # arXiv 2502.05795: RMSNorm / sqrt(layer counted from 1)
            return self.rms(module, x, eps) / math.sqrt(layer + 1)
        if kind == "bhytstar_mean" and not final:
            # arXiv 2601.09719: gamma * tanh(lambda * x / (kappa * s + |mu|)), x not centred
            kappa = self.config.get("bhyt_kappa", 10.0)
            if self.config.get("bhyt_kappa_schedule") == "decay":
                kappa /= math.sqrt(layer + 1)
            s = (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
            scale = self.w[f"{module}.lam"] / (kappa * s + x.mean(-1, keepdim=True).abs())
            return weight * torch.tanh(scale * x)
        return self.rms(module, x, eps)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        inverse = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        turn = torch.polar(torch.ones(()).double(), torch.outer(torch.arange(x.shape[1]), inverse))
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def attention(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.linear(f"{prefix}self_attn.{name}_proj", x)
            .unflatten(-1, (-1, self.config["head_dim"]))
            .transpose(0, 1)
            for name in "qkv"
        )
        mixed = self.attend(self.rotate(q), self.rotate(k), v)
        return self.linear(f"{prefix}self_attn.o_proj", mixed)

    def mlp(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        gate = F.silu(self.linear(f"{prefix}mlp.gate_proj", x))
        return self.linear(f"{prefix}mlp.down_proj", gate * self.linear(f"{prefix}mlp.up_proj", x))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits, [tokens, vocab]."""
        layers, peri = self.config["num_hidden_layers"], self.config["norm_type"] == "peri"
        x = self.w["model.embed_tokens.weight"][ids] * self.w.get("model.shared_scale", 1.0)
        if "model.embed_layernorm.weight" in self.w:
            x = self.norm("model.embed_layernorm", 0, x)
        self.see("hidden.embed", x)
        for layer in range(layers):
            prefix = f"model.layers.{layer}."
            mlp_norm = "pre_feedforward_layernorm" if peri else "post_attention_layernorm"
            h = self.attention(prefix, self.norm(f"{prefix}input_layernorm", layer, x))
            # Peri-LN (arXiv 2502.02732) norms what each sub-block adds, too.
            x = x + (self.norm(f"{prefix}post_attention_layernorm", layer, h) if peri else h)
            h = self.mlp(prefix, self.norm(f"{prefix}{mlp_norm}", layer, x))
            x = x + (self.norm(f"{prefix}post_feedforward_layernorm", layer, h) if peri else h)
            self.see(f"hidden.{layer}", x)
        x = self.see("norm", self.norm("model.norm", layers, x))
        return x @ self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"]).T


class NanoGpt(Model):
    """GPT-2's shape: learned positions, pre-LayerNorm, exact GELU, tied head."""

    EPS = 1e-5

    def layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self.w.get(f"{name}.bias")
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], bias, self.EPS)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.config["model_args"]["n_head"], -1)).transpose(0, 1)

    def block(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        fused = self.linear(f"{prefix}attn.c_attn", self.layer_norm(f"{prefix}ln_1", x))
        q, k, v = (self.heads(part) for part in fused.chunk(3, -1))
        x = x + self.linear(f"{prefix}attn.c_proj", self.attend(q, k, v))
        wide = self.linear(f"{prefix}mlp.c_fc", self.layer_norm(f"{prefix}ln_2", x))
        return x + self.linear(f"{prefix}mlp.c_proj", F.gelu(wide))

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer_norm("transformer.ln_f", x)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits, [tokens, vocab]."""
        embedding = self.w["transformer.wte.weight"]
        x = self.see("hidden.embed", embedding[ids] + self.w["transformer.wpe.weight"][: len(ids)])
        for layer in range(self.config["model_args"]["n_layer"]):
            x = self.see(f"hidden.{layer}", self.block(f"transformer.h.{layer}.", x))
        return self.see("norm", self.final_norm(x)) @ embedding.T


class SimpleNanoGpt(NanoGpt):
    """SimpleGPT (arXiv 2602.01212) on nanoGPT: each linear and its RMSNorm, no pre-norms."""

    def simple(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.rms(f"{name}.norm", self.linear(f"{name}.lin", x), self.EPS)

    def block(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(self.simple(f"{prefix}attn.{name}", x)) for name in "qkv")
        x = x + self.simple(f"{prefix}attn.c_proj", self.attend(q, k, v))
        return x + self.simple(f"{prefix}mlp.c_proj", F.gelu(self.simple(f"{prefix}mlp.c_fc", x)))

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.rms("transformer.ln_f", x, self.EPS)
