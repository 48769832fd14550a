# SPDX-License-Identifier: Apache-2.0
"""The checks of this folder catch planted faults: a check that cannot fail guards nothing."""
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_includes
import check_tree

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for module in (check_includes, check_tree):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for folder in ("server/rpc", "server/kernels", "client", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "client/main.cc").write_text(SPDX)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize("path, line", [
    ("server/rpc/a.cc", '#include "model/causal_lm.h"'),
    ("server/rpc/a.cc", '#include "engine/inbox.h"'),
    ("server/rpc/a.cc", "#include <ATen/core/Tensor.h>"),
    ("server/kernels/a.cc", "#include <grpcpp/grpcpp.h>"),
    ("server/kernels/a.h", '#include "normserve/v1/generation.pb.h"'),
    ("server/kernels/row_softmax.cc", "#include <torch/library.h>"),
    ("client/a.cc", '#include "engine/engine.h"'),
])
def test_a_forbidden_include_is_found(tree, capsys, path, line):
    (tree / path).write_text(SPDX + line + "\n")
    assert check_includes.main() == 1
    assert path in capsys.readouterr().out


@pytest.mark.parametrize("path, line", [
    ("server/rpc/a.cc", '#include "engine/engine.h"'),
    ("server/rpc/a.cc", "#include <grpcpp/grpcpp.h>"),
    ("server/kernels/ops.cc", "#include <torch/library.h>"),
])
def test_an_allowed_include_passes(tree, path, line):
    (tree / path).write_text(SPDX + line + "\n")
    assert check_includes.main() == 0


def test_a_folder_outside_the_table_is_found(tree):
    (tree / "server/helpers").mkdir()
    assert check_includes.main() == 1


@pytest.mark.parametrize("path, text, fault", [
    ("client/a.cc", "int x;\n", "no SPDX"),
    ("client/a.cc", SPDX + "int x;\n" * 400, "401 lines"),
    ("client/a.cc", SPDX + "// TO" + "DO: later\n", "marker"),
    ("docs/a.md", "See `client/gone.cc`.\n", "client/gone.cc"),
    ("docs/a.md", "See [it](gone.md).\n", "gone.md"),
])
def test_a_fault_of_the_tree_is_found(tree, capsys, path, text, fault):
    (tree / path).write_text(text)
    subprocess.run(["git", "-C", tree, "add", "."], check=True)
    assert check_tree.main() == 1
    assert fault in capsys.readouterr().out


def test_existing_paths_in_documents_pass(tree):
    (tree / "docs/a.md").write_text("See `client/main.cc`, `client/*.cc` and [it](../client/main.cc).\n")
    subprocess.run(["git", "-C", tree, "add", "."], check=True)
    assert check_tree.main() == 0
