# SPDX-License-Identifier: Apache-2.0
"""Python stubs of the wire contract, generated on the fly from proto/ with grpcio-tools."""

import importlib
import pathlib
import sys
import tempfile

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    """(messages module, services module) of normserve.v1."""
    from grpc_tools import protoc

    proto = ROOT / "proto" / "normserve" / "v1" / "generation.proto"
    with tempfile.TemporaryDirectory(prefix="normserve-stubs-") as folder:
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"--python_out={folder}",
                f"--grpc_python_out={folder}",
                str(proto),
            ]
        )
        if code != 0:
            raise RuntimeError(f"protoc failed on {proto}")
        sys.path.insert(0, folder)
        messages = importlib.import_module("normserve.v1.generation_pb2")
        services = importlib.import_module("normserve.v1.generation_pb2_grpc")
        sys.path.remove(folder)
    return messages, services


def connect(address: str):
    """(messages module, GenerationService stub) of a running server."""
    messages, services = load()
    channel = grpc.insecure_channel(
        address, options=[("grpc.max_receive_message_length", 256 << 20)]
    )
    return messages, services.GenerationServiceStub(channel)
