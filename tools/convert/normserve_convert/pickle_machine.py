# SPDX-License-Identifier: Apache-2.0
"""Interprets the pickles inside PyTorch checkpoints without being able to run anything.

Python's own unpickler imports and calls what the file names. This one has no import and no call: a
global is looked up in a table that the caller gives, and everything in that table is a function of
this package that builds plain data. An unknown global or opcode ends the conversion by name.

It reads protocols 2 to 5 as torch.save and torch.distributed.checkpoint write them, not pickles in
general.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from normserve_convert.errors import ConvertError


class Record:
    """An instance of a class that a pickle names: its dotted name, and its state as plain data."""

    def __init__(self, name: str, args: tuple = ()):
        self.name = name
        self.args = args
        self.state: Any = None

    def field(self, key: str, position: int | None = None) -> Any:
        """A field of the state, whether it was written as a dict or as a tuple."""
        if isinstance(self.state, dict) and key in self.state:
            return self.state[key]
        if isinstance(self.state, tuple) and position is not None and position < len(self.state):
            return self.state[position]
        raise ConvertError(f"the pickle's {self.name} has no field '{key}'")


class Global:
    """An allowed global: what REDUCE and NEWOBJ do with it."""

    def __init__(self, name: str, build: Callable[..., Any]):
        self.name = name
        self.build = build


class _Mark:
    pass


_MARK = _Mark()
_MAX_STACK = 50_000_000


class PickleMachine:
    """Reads one pickle. `globals_` maps "module.name" to a function that builds data."""

    def __init__(
        self,
        data: bytes | memoryview,
        where: str,
        globals_: Mapping[str, Callable[..., Any]],
        persistent_load: Callable[[Any], Any] | None = None,
    ):
        self._data = memoryview(data)
        self._at = 0
        self._where = where
        self._globals = globals_
        self._persistent_load = persistent_load
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The pickled object, or ConvertError."""
        try:
            return self._run()
        except ConvertError:
            raise
        except (IndexError, struct.error):
            raise self._fault("ends too early or pops an empty stack") from None
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise self._fault(f"is malformed ({type(error).__name__}: {error})") from None

    def _run(self) -> Any:
        while True:
            code = self._take(1)[0]
            if code == 0x2E:  # STOP
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise self._fault(f"uses opcode 0x{code:02x}, which is not allowed")
            step(self)
            if len(self._stack) > _MAX_STACK:
                raise self._fault("nests too deeply")

    def _fault(self, what: str) -> ConvertError:
        return ConvertError(f"{self._where}: the pickle {what} (at byte {self._at})")

    def _take(self, count: int) -> memoryview:
        if count < 0 or self._at + count > len(self._data):
            raise self._fault("ends too early")
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        start = self._at
        while self._take(1)[0] != 0x0A:
            pass
        return bytes(self._data[start : self._at - 1]).decode("utf-8")

    def _since_mark(self) -> list[Any]:
        index = len(self._stack) - 1
        while self._stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise self._fault("has no mark where one is needed")
        items = self._stack[index + 1 :]
        del self._stack[index:]
        return items

    # Each method below is one opcode, or a family of them.

    def _push_text(self, form: str) -> None:
        self._stack.append(bytes(self._take(self._number(form))).decode("utf-8", "surrogatepass"))

    def _push_bytes(self, form: str) -> None:
        self._stack.append(bytes(self._take(self._number(form))))

    def _long1(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def _tuple(self, count: int) -> None:
        items = tuple(self._stack[len(self._stack) - count :]) if count else ()
        if len(items) != count:
            raise IndexError
        del self._stack[len(self._stack) - count :]
        self._stack.append(items)

    def _append(self) -> None:
        item = self._stack.pop()
        self._into(list).append(item)

    def _appends(self) -> None:
        items = self._since_mark()
        self._into(list).extend(items)

    def _set_item(self) -> None:
        value = self._stack.pop()
        key = self._stack.pop()
        self._into(dict)[key] = value

    def _set_items(self) -> None:
        items = self._since_mark()
        target = self._into(dict)
        for i in range(0, len(items) - 1, 2):
            target[items[i]] = items[i + 1]

    def _add_items(self) -> None:
        items = self._since_mark()
        self._into(set).update(items)

    def _into(self, kind: type) -> Any:
        target = self._stack[-1]
        if not isinstance(target, kind):
            raise self._fault(f"adds to something that is no {kind.__name__}")
        return target

    def _dict_from_mark(self) -> None:
        items = self._since_mark()
        self._stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _look_up(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise self._fault("names a global by something that is not text")
        full = f"{module}.{name}"
        build = self._globals.get(full)
        if build is None:
            raise ConvertError(f"{self._where}: the pickle names '{full}', which is not allowed")
        self._stack.append(Global(full, build))

    def _stack_global(self) -> None:
        name = self._stack.pop()
        self._look_up(self._stack.pop(), name)

    def _reduce(self) -> None:
        args = self._stack.pop()
        target = self._stack.pop()
        if not isinstance(target, Global) or not isinstance(args, tuple):
            raise self._fault("calls something that is not an allowed global")
        self._stack.append(target.build(*args))

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, dict):  # a state dict's _metadata is of no use here
            raise self._fault("sets the state of something that has none")

    def _persistent(self) -> None:
        if self._persistent_load is None:
            raise self._fault("has a persistent id where none is expected")
        self._stack.append(self._persistent_load(self._stack.pop()))

    def _memoize(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise self._fault(f"recalls memo {index}, which was never stored")
        self._stack.append(self._memo[index])


def _proto(machine: PickleMachine) -> None:
    version = machine._number("<B")
    if version > 5:
        raise machine._fault(f"has protocol {version}; known: up to 5")


def _push(make: Callable[[], Any]) -> Callable[[PickleMachine], None]:
    return lambda m: m._stack.append(make())


_STEPS: dict[int, Callable[[PickleMachine], Any]] = {
    0x80: _proto,
    0x95: lambda m: m._take(8),  # FRAME: a reading hint
    ord("("): _push(lambda: _MARK),
    ord("0"): lambda m: m._stack.pop(),
    ord("1"): lambda m: m._since_mark(),
    ord("N"): _push(lambda: None),
    0x88: _push(lambda: True),
    0x89: _push(lambda: False),
    ord("J"): lambda m: m._stack.append(m._number("<i")),
    ord("K"): lambda m: m._stack.append(m._number("<B")),
    ord("M"): lambda m: m._stack.append(m._number("<H")),
    ord("G"): lambda m: m._stack.append(m._number(">d")),
    0x8A: PickleMachine._long1,
    ord("X"): lambda m: m._push_text("<I"),
    0x8C: lambda m: m._push_text("<B"),
    0x8D: lambda m: m._push_text("<Q"),
    ord("B"): lambda m: m._push_bytes("<I"),
    ord("C"): lambda m: m._push_bytes("<B"),
    0x8E: lambda m: m._push_bytes("<Q"),
    ord(")"): _push(tuple),
    ord("]"): _push(list),
    ord("}"): _push(dict),
    0x8F: _push(set),
    ord("t"): lambda m: m._stack.append(tuple(m._since_mark())),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    ord("l"): lambda m: m._stack.append(m._since_mark()),
    ord("d"): PickleMachine._dict_from_mark,
    0x91: lambda m: m._stack.append(frozenset(m._since_mark())),
    ord("a"): PickleMachine._append,
    ord("e"): PickleMachine._appends,
    ord("s"): PickleMachine._set_item,
    ord("u"): PickleMachine._set_items,
    0x90: PickleMachine._add_items,
    ord("q"): lambda m: m._memoize(m._number("<B")),
    ord("r"): lambda m: m._memoize(m._number("<I")),
    0x94: lambda m: m._memoize(len(m._memo)),
    ord("h"): lambda m: m._recall(m._number("<B")),
    ord("j"): lambda m: m._recall(m._number("<I")),
    ord("c"): lambda m: m._look_up(m._line(), m._line()),
    0x93: PickleMachine._stack_global,
    ord("R"): PickleMachine._reduce,
    0x81: PickleMachine._reduce,  # NEWOBJ: for the tables here the same as REDUCE
    ord("b"): PickleMachine._build,
    ord("Q"): PickleMachine._persistent,
}
