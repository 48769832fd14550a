# SPDX-License-Identifier: Apache-2.0
"""What the two llama.cpp adapters share: a batch over arrays, all prompts first, then step by step.

As llama.cpp's own batched bench does it, with the arg max of every row of logits taken on the host. A
context is made for each number of requests and length, outside the timed part: so every measurement
has the smallest cache that will do. No server and no client is between the engine and the clock.
All of that is in its favour.
"""

import ctypes
import time

import numpy
from engines import base

BATCH_TOKENS = 2048
CACHE_GRANULE = 256


class Arrays:
    """The arrays that a llama_batch points to."""

    def __init__(self):
        self.token = numpy.zeros(BATCH_TOKENS, numpy.int32)
        self.position = numpy.zeros(BATCH_TOKENS, numpy.int32)
        self.sequence = numpy.zeros(BATCH_TOKENS, numpy.int32)
        self.sequences_per_token = numpy.ones(BATCH_TOKENS, numpy.int32)
        self.wants_logits = numpy.zeros(BATCH_TOKENS, numpy.int8)
        step = self.sequence.itemsize
        first = self.sequence.ctypes.data
        self.sequence_pointers = numpy.arange(BATCH_TOKENS, dtype=numpy.uint64) * step + first
        self.count = 0

    def clear(self) -> None:
        self.count = 0

    def add(self, tokens, first_position: int, sequence: int) -> int:
        """Appends consecutive tokens of a sequence; the row of the last one, which gets logits."""
        rows = slice(self.count, self.count + len(tokens))
        self.token[rows] = tokens
        self.position[rows] = numpy.arange(first_position, first_position + len(tokens))
        self.sequence[rows] = sequence
        self.wants_logits[rows] = 0
        self.count += len(tokens)
        self.wants_logits[self.count - 1] = 1
        return self.count - 1


class LockstepEngine(base.Engine):
    """The C API that both have in common. A subclass sets api, and weights with load()."""

    def load(self, api, weights) -> None:
        self.api, self.weights = api, weights
        if not weights:
            raise RuntimeError(f"cannot load {self.model}")
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(weights))
        self.context, self.shape = None, None
        self.arrays = Arrays()
        self.batch = api.llama_batch()
        kinds = dict(field[:2] for field in api.llama_batch._fields_)
        members = {
            "token": self.arrays.token,
            "pos": self.arrays.position,
            "n_seq_id": self.arrays.sequences_per_token,
            "seq_id": self.arrays.sequence_pointers,
            "logits": self.arrays.wants_logits,
        }
        for name, array in members.items():
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, kinds[name]))

    def set_flash_attention(self, parameters) -> None:
        raise NotImplementedError

    def clear_cache(self) -> None:
        raise NotImplementedError

    def prepare(self, streams: int, tokens: int) -> None:
        if self.shape == (streams, tokens):
            return
        if self.context:
            self.api.llama_free(self.context)
        parameters = self.api.llama_context_default_params()
        parameters.n_ctx = streams * (-(-tokens // CACHE_GRANULE) * CACHE_GRANULE)
        parameters.n_seq_max = streams
        parameters.n_batch, parameters.n_ubatch = BATCH_TOKENS, 512
        parameters.n_threads = parameters.n_threads_batch = self.threads
        self.set_flash_attention(parameters)
        self.context = self.api.llama_init_from_model(self.weights, parameters)
        if not self.context:
            raise RuntimeError(f"no context for {streams} requests of {tokens} tokens")
        self.shape = (streams, tokens)

    def generate(self, prompts, output):
        self.clear_cache()
        ids = [[] for _ in prompts]
        times = [[] for _ in prompts]
        rows = {}
        self.arrays.clear()
        for sequence, prompt in enumerate(prompts):
            if self.arrays.count + len(prompt) > BATCH_TOKENS:
                self._step(rows, ids, times)
                rows = {}
                self.arrays.clear()
            rows[sequence] = self.arrays.add(prompt, 0, sequence)
        self._step(rows, ids, times)
        for number in range(1, output):
            self.arrays.clear()
            rows = {
                sequence: self.arrays.add(ids[sequence][-1:], len(prompt) + number - 1, sequence)
                for sequence, prompt in enumerate(prompts)
            }
            self._step(rows, ids, times)
        return times, ids

    def _step(self, rows: dict[int, int], ids, times) -> None:
        """Runs the batch; rows: sequence -> the row that has its next token's logits."""
        self.batch.n_tokens = self.arrays.count
        code = self.api.llama_decode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode: {code}")
        for sequence, row in rows.items():
            logits = self.api.llama_get_logits_ith(self.context, row)
            ids[sequence].append(int(numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax()))
        now = time.perf_counter()
        for sequence in rows:
            times[sequence].append(now)
