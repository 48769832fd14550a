# SPDX-License-Identifier: Apache-2.0
"""What every engine adapter offers, and what they share.

An adapter is a module with

  NAME       as it is asked for and reported
  FOLDER     its virtual environment under --rivals ("" when it runs in the caller's Python)
  MODULE     the Python module that tells whether it is installed there
  INSTALL    the arguments of pip that install it there; INSTALL_ALSO: a further command, in FOLDER
  VARIANTS   the kinds of weights: name -> what the adapter makes of it
  Engine     a subclass of the class below, or make(), which gives one from the same arguments

and, when the engine does not read checkpoint folders,

  convert(model, target, variant)   writes the engine's own form, run in FOLDER or in CONVERTER,
                                    (folder, pip arguments) of an environment for that alone
  SUFFIX                            of the converted file or folder
  CONVERTED_BY                      instead of convert: the adapter whose files it reads

It imports nothing that has to be installed before start() or convert().
"""

import pathlib
import time


class Engine:
    """One engine with one model. Runs in a process of its own; a call ends before the next begins."""

    def __init__(self, model: str, variant: str, threads: int, options: dict):
        """model: the converted form, or the checkpoint folder itself when the adapter has no convert()."""
        self.model, self.variant, self.threads, self.options = model, variant, threads, options
        self.version = ""

    def start(self) -> None:
        """Imports and loads everything; sets version. Its duration is the start-up time."""
        raise NotImplementedError

    def prepare(self, streams: int, tokens: int) -> None:
        """Called before a generate() of so many requests with so many tokens each; not timed."""

    def generate(self, prompts: list[list[int]], output: int) -> tuple[list[list[float]], list[list[int]]]:
        """All prompts at once, greedily, exactly `output` tokens each, whatever they are.

        Per request: the time.perf_counter() at which each token was there, and the ids. An engine that measures by
        another clock says as a third value when the prompts were handed over, by that clock.
        """
        raise NotImplementedError

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from the prompt to its first token."""
        begin = time.perf_counter()
        times, _ = self.generate([prompt], 1)
        return times[0][-1] - begin

    def process(self) -> int | str:
        """The process whose memory counts."""
        return "self"

    def peak_rss_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process()}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def stop(self) -> None:
        pass
