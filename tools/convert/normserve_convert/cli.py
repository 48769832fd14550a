# SPDX-License-Identifier: Apache-2.0
"""The command normserve-convert: arguments in, a folder that normserve loads out.

Exit code 0 when the folder is there, 1 with one sentence on stderr when it is not, 2 for a wrong
command line.
"""

import argparse
import json
import os
import sys
from typing import Any

from normserve_convert.conversion import Conversion, Options
from normserve_convert.errors import ConvertError
from normserve_convert.families import dyt, nanogpt, torchtitan
from normserve_convert.output import TOKENIZER_FILES, write_folder
from normserve_convert.progress import ProgressBar
from normserve_convert.source import Source, open_source

_FAMILIES = (torchtitan, nanogpt, dyt)

_EPILOG = f"""\
models of --model (torchtitan checkpoints need one; others are recognised):
  {", ".join(torchtitan.ARCHITECTURES)}, nanogpt, simple_nanogpt, dyt
flavors of llama2*: {", ".join(torchtitan.FLAVORS["llama2"])}
flavors of llama3*: {", ".join(torchtitan.FLAVORS["llama3"])}
flavors of dyt: {", ".join(dyt.FLAVORS)}

examples:
  normserve-convert outputs/checkpoint/step-20000 simplegpt-1b \\
      --model llama2_simplegpt --flavor 1B --tokenizer tokenizer.model
  normserve-convert out/ckpt.pt my-nanogpt
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        conversion = _convert(open_source(arguments.checkpoint), _options(arguments))
        total = sum(tensor.byte_count for tensor in conversion.tensors)
        bar = ProgressBar(total, arguments.quiet)
        write_folder(arguments.output, conversion, arguments.tokenizer, bar)
    except ConvertError as error:
        print(f"normserve-convert: {error}", file=sys.stderr)
        return 1
    for note in conversion.notes:
        print(f"note: {note}", file=sys.stderr)
    parameters = sum(tensor.element_count for tensor in conversion.tensors)
    print(
        f"{arguments.output}: {conversion.config.get('architecture', 'llama (dyt)')}, "
        f"{len(conversion.tensors)} tensors, {parameters:,} parameters, "
        f"{conversion.config['torch_dtype']}"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="normserve-convert",
        description="Converts a PyTorch training checkpoint to a folder that normserve loads "
        "(model.safetensors and config.json). Names and number types are kept.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", help="a torch.distributed.checkpoint folder, or a .pt file")
    parser.add_argument("output", help="folder to create")
    parser.add_argument("--model", help="the training code's model name")
    parser.add_argument("--flavor", help="the training code's size name")
    parser.add_argument(
        "--model-args",
        metavar="JSON",
        help="model arguments instead of a flavor: JSON text, or a file that holds it",
    )
    parser.add_argument("--norm-type", help=f"torchtitan: {', '.join(torchtitan.NORM_TYPES)}")
    parser.add_argument("--max-seq-len", type=int, help="context length in tokens")
    parser.add_argument(
        "--tokenizer",
        action="append",
        default=[],
        metavar="PATH",
        help=f"copy tokenizer files along: a folder, or one of {', '.join(TOKENIZER_FILES)}; "
        "may be repeated",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    if arguments.model_args is not None and arguments.flavor is not None:
        raise ConvertError("--flavor and --model-args are both given; one of them is needed")
    if arguments.max_seq_len is not None and arguments.max_seq_len < 1:
        raise ConvertError(f"--max-seq-len is {arguments.max_seq_len}; at least 1 is needed")
    return Options(
        model=arguments.model,
        flavor=arguments.flavor,
        model_args=_json_argument(arguments.model_args),
        norm_type=arguments.norm_type,
        max_seq_len=arguments.max_seq_len,
    )


def _json_argument(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        if os.path.isfile(text):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise ConvertError(f"--model-args: is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConvertError("--model-args: a JSON object is needed")
    # A whole config.json of this project is welcome too.
    inner = value.get("model_args")
    return inner if isinstance(inner, dict) else value


def _convert(source: Source, options: Options) -> Conversion:
    names = set(source.tensors)
    for family in _FAMILIES:
        if family.recognises(names):
            return family.convert(source.tensors, options, source.model_args)
    sample = ", ".join(sorted(names)[:3])
    raise ConvertError(
        f"the tensors ({sample}, ...) are of no known model: torchtitan (tok_embeddings), nanoGPT "
        "(transformer.wte) or DyT (shared.emb, dec_norm)"
    )
