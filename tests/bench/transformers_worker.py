#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The transformers side of compare_transformers.py: one model in one type, generating on request.

Reads one JSON object per line from stdin, {"prompts": [[id, ...], ...], "output_tokens": N}, runs
them as one batch through generate() and answers {"seconds": S, "output_tokens": N}. The prompts of
a batch have one length, so nothing is padded.

With --bhyt-code the model class is the BHyT authors' own, loaded from their repository as it is.
"""

import argparse
import importlib
import json
import pathlib
import sys
import time
import types

import torch
import transformers


def authors_class(repository: str):
    """LlamaForCausalLM and LlamaConfig of the BHyT repository.

    Its files replace those of transformers, whose relative imports they keep: they are loaded as a
    sibling package of transformers.models.llama.
    """
    folder = pathlib.Path(repository) / "models" / "hf_src" / "llama"
    if not (folder / "modeling_llama.py").is_file():
        raise SystemExit(f"--bhyt-code: {folder}/modeling_llama.py does not exist")
    name = "transformers.models.llama_bhyt"
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    package.__package__ = name
    sys.modules[name] = package
    modeling = importlib.import_module(f"{name}.modeling_llama")
    configuration = importlib.import_module(f"{name}.configuration_llama")
    return modeling.LlamaForCausalLM, configuration.LlamaConfig


def load(arguments: argparse.Namespace):
    dtype = getattr(torch, arguments.dtype)
    options = {"torch_dtype": dtype, "attn_implementation": "eager"}
    if not arguments.bhyt_code:
        return transformers.AutoModelForCausalLM.from_pretrained(arguments.model, **options)
    model_class, config_class = authors_class(arguments.bhyt_code)
    config = config_class.from_pretrained(arguments.model)
    return model_class.from_pretrained(arguments.model, config=config, **options)


def generate(model, prompts: list[list[int]], output_tokens: int) -> float:
    """Seconds of one generate() call over the batch."""
    ids = torch.tensor(prompts, device=model.device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=output_tokens,
            min_new_tokens=output_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        ).cpu()
    seconds = time.perf_counter() - start
    if out.shape[1] != ids.shape[1] + output_tokens:
        raise SystemExit(f"generate() gave {out.shape[1] - ids.shape[1]} tokens")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--bhyt-code", default="", help="a checkout of the BHyT repository")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load(arguments).eval().to(arguments.device)
    answers = {"class": f"{type(model).__module__}.{type(model).__name__}"}
    answers |= {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps(answers), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts, tokens = request["prompts"], request["output_tokens"]
        seconds = generate(model, prompts, tokens)
        print(json.dumps({"seconds": seconds, "output_tokens": len(prompts) * tokens}), flush=True)


if __name__ == "__main__":
    main()
