"""tests/cuda_sources.py in a repository made for it."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FILES = {
    "CMakeLists.txt": "",
    "kernels/tensor.h": "",
    "kernels/ops/gla.h": '#include "kernels/tensor.h"\n',
    "kernels/cuda/sm80/gla.cu": '#include "gla.h"\n',
    "kernels/cuda/sm80/gla.h": '#include "kernels/ops/gla.h"\n#include <vector>\n',
    "kernels/cuda/sm80/add.cu": "",
    "kernels/backend.cc": "#if RECURVE_CUDA\n#endif\n",
    "kernels/reference/gla.cc": '#include "kernels/ops/gla.h"\n',
    "tests/kernels/gla_test.cc":
        '#include "tests/support/kernel_device.h"\n#include "kernels/ops/gla.h"\n',
    "tests/support/kernel_device.h": "#if RECURVE_CUDA\n#endif\n",
    "model/model.cc": '#include "kernels/tensor.h"\n#if RECURVE_CUDA\n#endif\n',
}
COMPILED = [name for name in FILES if name.endswith((".cu", ".cc"))]
ALL = {"kernels/backend.cc", "kernels/cuda/sm80/add.cu", "kernels/cuda/sm80/gla.cu",
       "tests/kernels/gla_test.cc"}


@pytest.fixture
def repository(tmp_path):
    tmp_path = tmp_path.resolve()
    for name, text in FILES.items():
        write(tmp_path, name, text)
    shutil.copy(HERE / "cuda_sources.py", tmp_path / "tests")
    commands = [{"file": str(tmp_path / name)} for name in COMPILED]
    write(tmp_path, "build/compile_commands.json", json.dumps(commands))
    write(tmp_path, ".gitignore", "/build/\n")
    for command in (["init"], ["add", "-A"], ["commit", "-m", "one"]):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.example",
                        "-c", "commit.gpgsign=false", *command], check=True, capture_output=True)
    return tmp_path


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def printed(root):
    out = subprocess.run([sys.executable, root / "tests/cuda_sources.py", root / "build", "HEAD"],
                         check=True, text=True, capture_output=True).stdout
    return {str(pathlib.Path(line).relative_to(root)) for line in out.splitlines()}


def test_nothing_has_changed(repository):
    assert printed(repository) == set()


@pytest.mark.parametrize("name, sources", [
    ("kernels/cuda/sm80/add.cu", {"kernels/cuda/sm80/add.cu"}),
    ("kernels/tensor.h", {"kernels/cuda/sm80/gla.cu", "tests/kernels/gla_test.cc"}),
    ("kernels/cuda/sm80/gla.h", {"kernels/cuda/sm80/gla.cu"}),
    ("tests/support/kernel_device.h", {"tests/kernels/gla_test.cc"}),
    ("kernels/backend.cc", {"kernels/backend.cc"}),
    ("kernels/reference/gla.cc", set()),
    ("model/model.cc", set()),
    ("CMakeLists.txt", ALL),
])
def test_a_file_has_changed(repository, name, sources):
    write(repository, name, FILES[name] + "// changed\n")
    assert printed(repository) == sources


def test_a_header_is_gone(repository):
    (repository / "kernels/tensor.h").unlink()
    assert printed(repository) == {"kernels/cuda/sm80/gla.cu", "tests/kernels/gla_test.cc"}


def test_a_new_header_that_git_does_not_know(repository):
    write(repository, "kernels/cuda/sm80/kernels/ops/gla.h", "")
    assert printed(repository) == {"kernels/cuda/sm80/gla.cu"}
