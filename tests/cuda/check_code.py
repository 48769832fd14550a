#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a plugin holds machine code of every kernel for exactly the architectures asked for.

Usage: check_code.py PLUGIN ARCHITECTURE...  (80, 90-real, ...). Needs neither a GPU nor NVIDIA's tools: it reads
the section into which nvcc puts device code. Prints one line per architecture; exits 1 when something is missing.
"""
import collections
import pathlib
import struct
import sys

CONTAINER_MAGIC = 0xBA55ED50
MACHINE_CODE = 2  # an entry's kind; 1 is PTX
EM_CUDA = 190


def sections(elf):
    """Name and bytes of each section of a 64-bit ELF file."""
    offset = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    for name, kind, _, _, at, length in headers:
        start = headers[names][4] + name
        no_bits = kind == 8
        yield elf[start:elf.index(b"\0", start)].decode(), b"" if no_bits else elf[at:at + length]


def cubins(fatbin):
    """Architecture and ELF file of every piece of machine code in an .nv_fatbin section."""
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != CONTAINER_MAGIC:  # padding between the object files' containers
            at += 8
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, entry_header, length = struct.unpack_from("<HHIQ", fatbin, entry)
            architecture = struct.unpack_from("<I", fatbin, entry + 28)[0]
            begin = entry + entry_header
            entry = begin + length
            if kind == MACHINE_CODE:
                yield architecture, fatbin[begin:entry]


def kernels_of(plugin):
    """Architecture -> names of the kernels that have code for it."""
    found = collections.defaultdict(list)
    for name, content in sections(plugin):
        if name != ".nv_fatbin":
            continue
        for architecture, cubin in cubins(content):
            if cubin[:4] != b"\x7fELF" or struct.unpack_from("<H", cubin, 0x12)[0] != EM_CUDA:
                raise SystemExit(f"sm_{architecture}: an entry is no cubin (compressed?)")
            found[architecture] += [s[len(".text."):] for s, code in sections(cubin) if s.startswith(".text.") and code]
    return found


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    asked = {int(argument.split("-")[0]) for argument in sys.argv[2:]}
    found = kernels_of(pathlib.Path(sys.argv[1]).read_bytes())
    everything = {kernel for kernels in found.values() for kernel in kernels}
    faults = [f"sm_{architecture}: not asked for" for architecture in set(found) - asked]
    for architecture in sorted(asked):
        kernels = set(found.get(architecture, ()))
        missing = everything - kernels
        print(f"sm_{architecture}: {len(kernels)} kernels")
        if not kernels:
            faults.append(f"sm_{architecture}: no code for any of {len(everything)} kernels")
        elif missing:
            faults.append(f"sm_{architecture}: no code for {len(missing)} of {len(everything)} kernels, {min(missing)}")
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
