"""CMake takes the gRPC and Protobuf of a prefix that is named, by their own config files, before those
of the system. What is installed here as newer ones has the names that they export, and nothing behind
them: this is about which are taken, and not whether they can be compiled with.

    /usr/bin/python3 -m pytest tests/newer_grpc_test.py
"""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROTOBUF = """
set(Protobuf_VERSION 33.1)
add_library(protobuf::libprotobuf INTERFACE IMPORTED)
target_include_directories(protobuf::libprotobuf INTERFACE {prefix}/include)
add_executable(protobuf::protoc IMPORTED)
set_target_properties(protobuf::protoc PROPERTIES IMPORTED_LOCATION {prefix}/bin/protoc)
"""
GRPC = """
foreach(name grpc++ grpc++_reflection)
  add_library(gRPC::${{name}} INTERFACE IMPORTED)
  target_include_directories(gRPC::${{name}} INTERFACE {prefix}/include)
endforeach()
add_executable(gRPC::grpc_cpp_plugin IMPORTED)
set_target_properties(gRPC::grpc_cpp_plugin PROPERTIES IMPORTED_LOCATION {prefix}/bin/grpc_cpp_plugin)
"""


def newer(prefix):
    """A prefix with both, as `cmake --install` of them lays it out."""
    for folder, name, content in (("protobuf", "protobuf-config.cmake", PROTOBUF), ("grpc", "gRPCConfig.cmake", GRPC)):
        config = prefix / "lib/cmake" / folder / name
        config.parent.mkdir(parents=True)
        config.write_text(content.format(prefix=prefix))
    for folder in ("include", "bin"):
        (prefix / folder).mkdir()
    return prefix


def configured(folder, *flags):
    """The rules that CMake writes."""
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DRECURVE_CUDA=OFF", *flags],
                   check=True, capture_output=True, text=True)
    return (folder / "build.ninja").read_text()


@pytest.mark.skipif(not shutil.which("ninja"), reason="needs Ninja")
def test_those_of_a_prefix_go_before_the_systems(tmp_path):
    prefix = newer(tmp_path / "newer")
    rules = configured(tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert f"{prefix}/bin/protoc --proto_path" in rules
    assert f"--plugin=protoc-gen-grpc={prefix}/bin/grpc_cpp_plugin" in rules
    assert re.search(rf"-isystem {prefix}/include", rules)
    assert "libgrpc++.so" not in rules and "libprotobuf.so" not in rules, "the system's is linked too"
