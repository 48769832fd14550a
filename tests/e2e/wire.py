# SPDX-License-Identifier: Apache-2.0
"""The wire contract as Python: generated from proto/ when first imported, into a folder that goes away at exit.

Builds requests and joins streams; knows nothing of servers or models.
"""
import atexit
import importlib
import pathlib
import shutil
import sys
import tempfile

import grpc
import grpc_tools
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"


def _generate():
    out = tempfile.mkdtemp(prefix="normserve-proto-")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    code = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}",
                        str(PROTO / "normserve/v1/generation.proto")])
    if code != 0:
        raise RuntimeError("protoc failed on proto/normserve/v1/generation.proto")
    sys.path.insert(0, out)
    return (importlib.import_module("normserve.v1.generation_pb2"),
            importlib.import_module("normserve.v1.generation_pb2_grpc"))


pb, pb_grpc = _generate()

# No limit on answers: log-probabilities of a whole vocabulary are large.
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def open_channel(address):
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def generate(model, prompt, n=None, **fields):
    """A GenerateRequest. prompt: text or ids; other keywords go to the parameter message that has such a field."""
    request = pb.GenerateRequest(model=model)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(int(i) for i in prompt)
    if n is not None:
        fields["max_new_tokens"] = n
    for name, value in fields.items():
        holder = next(m for m in (request, request.sampling, request.stop, request.output)
                      if name in m.DESCRIPTOR.fields_by_name)
        if isinstance(value, dict):
            for key, item in value.items():
                getattr(holder, name)[key] = item
        elif isinstance(value, (list, tuple)):
            getattr(holder, name).extend(value)
        else:
            setattr(holder, name, value)
    return request


class Joined:
    """A stream's chunks put together, to be compared with a unary answer."""

    def __init__(self, chunks=()):
        self.chunks = []
        self.text, self.token_ids, self.token_logprobs, self.top_logprobs = "", [], [], []
        self.finish_reason, self.usage, self.stop_match, self.seed = 0, None, "", 0
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk):
        self.chunks.append(chunk)
        self.text += chunk.text
        self.token_ids.extend(chunk.token_ids)
        self.token_logprobs.extend(chunk.token_logprobs)
        self.top_logprobs.extend(chunk.top_logprobs)
        self.finish_reason, self.stop_match, self.seed = chunk.finish_reason, chunk.stop_match, chunk.seed
        self.usage = chunk.usage if chunk.finish_reason else None


def essence(answer):
    """Everything of an answer that must not depend on what else the server does, exact to the last bit."""
    tops = tuple((tuple(t.token_ids), tuple(t.logprobs)) for t in answer.top_logprobs)
    return (answer.text, tuple(answer.token_ids), tuple(answer.token_logprobs), tops, answer.finish_reason,
            answer.stop_match, answer.usage.prompt_tokens, answer.usage.completion_tokens)


def score_ids(model, items, top=0):
    """A ScoreRequest; an item is a list of ids, or a (context, continuation) pair of such."""
    request = pb.ScoreRequest(model=model, top_logprobs=top)
    for item in items:
        entry = request.items.add()
        if isinstance(item, tuple):
            entry.token_pair.context.ids.extend(int(i) for i in item[0])
            entry.token_pair.continuation.ids.extend(int(i) for i in item[1])
        else:
            entry.token_ids.ids.extend(int(i) for i in item)
    return request
