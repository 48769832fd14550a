#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizers with the reference implementations on published tokenizers.

    compare_real.py --pipe build/release/bin/tokenizer_pipe FOLDER...

FOLDER holds a tokenizer.json, or a tokenizer.model (SentencePiece or tiktoken ranks), or a
config.json that names gpt2 together with r50k_base.tiktoken (its ranks, for the reference). Needs
the PyPI packages sentencepiece, tiktoken and tokenizers. Prints each mismatch and a summary; exit
code 1 if there was one. Also checks that the streamed text is the whole text, and times the pipe.
"""
import argparse
import base64
import json
import pathlib
import random
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "fixtures"))
import make_fixtures  # noqa: E402  the strings and the splitting at special tokens

GPT2_PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s")


def read_ranks(path):
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


class Json:
    def __init__(self, folder):
        import tokenizers
        self.inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.inner.no_truncation()
        self.inner.no_padding()
        self.size = max(self.inner.get_vocab().values()) + 1
        added = self.inner.get_added_tokens_decoder()
        self.specials = [token.content for token in added.values() if token.special]
        self.skips = (True, False)

    def encode(self, text):
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip):
        return self.inner.decode(ids, skip)


class SentencePiece:
    def __init__(self, folder):
        import sentencepiece
        self.inner = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        self.size = len(self.inner)
        self.specials = [self.inner.id_to_piece(i) for i in range(self.size)
                         if self.inner.is_control(i)]
        self.skips = (True,)

    def encode(self, text):
        ids = []
        for part, special in make_fixtures.split_at(text, self.specials):
            ids += [self.inner.piece_to_id(part)] if special else self.inner.encode(part)
        return ids

    def decode(self, ids, _skip):
        return self.inner.decode(ids)


class Tiktoken:
    def __init__(self, path, pattern, specials):
        import tiktoken
        ranks = read_ranks(path)
        first = max(ranks.values()) + 1
        ids = {text: first + i for i, text in enumerate(specials)}
        self.inner = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks,
                                       special_tokens=ids)
        self.size = first + len(specials)
        self.specials = specials[:12]
        self.skips = (False,)

    def encode(self, text):
        return self.inner.encode(text, allowed_special="all")

    def decode(self, ids, _skip):
        return self.inner.decode(ids)


def reference(folder):
    if (folder / "tokenizer.json").exists():
        return Json(folder)
    model = folder / "tokenizer.model"
    if not model.exists():
        return Tiktoken(folder / "r50k_base.tiktoken", GPT2_PATTERN, ["<|endoftext|>"])
    if re.match(rb"[A-Za-z0-9+/=]+ [0-9]+\s", model.read_bytes()[:200]):
        return Tiktoken(model, make_fixtures.LLAMA3_PATTERN, make_fixtures.llama3_specials())
    return SentencePiece(folder)


def more_strings(rng):
    """Random text from all of Unicode, and long documents."""
    ranges = [(32, 126)] * 6 + [(0, 31), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF),
              (0x900, 0xDFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
              (0xAC00, 0xD7A3), (0xFE00, 0xFFFD), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF)]
    for _ in range(2000):
        low, high = rng.choice(ranges)
        chars = [chr(rng.randint(low, high)) for _ in range(rng.randint(1, 30))]
        yield "".join(c if rng.random() < 0.8 else " " for c in chars)
    document = " ".join(make_fixtures.corpus())
    yield document[:60000]
    yield "x" * 30000
    yield " " * 3000 + "a"


def compare(pipe, folder):
    rng = random.Random(5)
    ref = reference(folder)
    questions, wanted = [], []
    for text in make_fixtures.strings(ref.specials[:6]) + list(more_strings(rng)):
        ids = ref.encode(text)
        questions.append({"text": text})
        wanted.append({"ids": ids})
        for skip in ref.skips:
            questions.append({"ids": ids, "skip_special": skip})
            wanted.append({"text": ref.decode(ids, skip)})
    for _ in range(3000):
        pool = rng.choice([ref.size, 300, 1000])
        ids = [rng.randrange(min(pool, ref.size)) for _ in range(rng.randint(1, 20))]
        for skip in ref.skips:
            questions.append({"ids": ids, "skip_special": skip})
            wanted.append({"text": ref.decode(ids, skip)})
    begin = time.monotonic()
    run = subprocess.run([pipe, str(folder)], text=True, encoding="utf-8", check=True,
                         input="".join(json.dumps(q) + "\n" for q in questions),
                         stdout=subprocess.PIPE)
    seconds = time.monotonic() - begin
    wrong = 0
    # Not splitlines(): that cuts at U+2028 too.
    answers = run.stdout.split("\n")[:-1]
    assert len(answers) == len(questions)
    for question, answer, want in zip(questions, map(json.loads, answers), wanted):
        same = all(answer.get(key) == value for key, value in want.items())
        if not same or answer.get("streamed", answer.get("text")) != answer.get("text"):
            wrong += 1
            if wrong <= 10:
                print(f"  {str(question)[:300]}\n   got  {str(answer)[:300]}\n"
                      f"   want {str(want)[:300]}")
    print(f"{folder}: {type(ref).__name__}, {ref.size} ids, {len(questions)} questions, "
          f"{wrong} mismatches, {seconds:.1f} s")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipe", required=True, help="the tokenizer_pipe binary")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    sys.exit(1 if sum(compare(options.pipe, folder) for folder in options.folders) else 0)


if __name__ == "__main__":
    main()
