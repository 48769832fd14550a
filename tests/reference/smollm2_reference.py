#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers generates from the SmolLM2 folder: 64 greedy tokens for five chat prompts.

Writes JSON: for float32 and bfloat16 the ids, their log-probabilities, and at each step the
distance between the two largest logits. End-of-sequence is ignored, so that every run has 64 steps.
The file is input to check_smollm2.py.

usage: smollm2_reference.py MODEL_FOLDER OUTPUT.json [--threads N]
"""

import argparse
import json

import torch
import transformers

STEPS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about the sea.",
    "Count from 1 to 15, then say how many of these numbers are even.",
    "Give me a Python function that returns the n-th Fibonacci number.",
)


def greedy(model, prompt: list[int]) -> dict:
    """`STEPS` greedy tokens by transformers' own generate()."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    chosen = out.sequences[0, len(prompt) :].tolist()
    rows = torch.stack(out.logits)[:, 0].double()
    top = rows.topk(2, dim=-1).values
    logprobs = rows.log_softmax(-1)[torch.arange(STEPS), torch.tensor(chosen)]
    return {
        "ids": chosen,
        "logprobs": logprobs.tolist(),
        "margins": (top[:, 0] - top[:, 1]).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    items = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        items.append(
            {"question": question, "prompt": text, "prompt_ids": tokenizer(text).input_ids}
        )
    for dtype in ("float32", "bfloat16"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.model, torch_dtype=getattr(torch, dtype), attn_implementation="eager"
        ).eval()
        for item in items:
            item[dtype] = greedy(model, item["prompt_ids"])
            item[dtype]["text"] = tokenizer.decode(item[dtype]["ids"], skip_special_tokens=True)
            print(f"{dtype} {item['question']}\n  {item[dtype]['text']!r}", flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({"versions": versions, "steps": STEPS, "items": items}, file, indent=1)


if __name__ == "__main__":
    main()
