"""Generates modules when the package is built: the protocol's messages, and the client that blocks.

grpcio-tools reads the .proto files and writes the types (.pyi). The modules themselves are written
here, from the descriptors: what protoc would write can be imported only with some versions of the
protobuf package, and this only calls what every version has.

recurve._sync is recurve._async without waiting. What differs by more is written twice:
_calls_sync.py and _calls_async.py, _scoring_sync.py and _scoring_async.py.
"""

import pathlib
import re
import shutil
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = '''\
"""The messages of {proto}, made from it when this package was built."""

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
{imports}
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({descriptor!r})

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
'''

# Patterns and what replaces them, one after the other, in the sources of recurve._async.
WITHOUT_WAITING = [
    (r"\n+ +Await[^\n]*(?=\n)", ""),  # a paragraph of a docstring
    (r"from recurve\._opening import Opening\n", ""),
    (r"\breturn Opening\((\w+)\)", r"return \1()"),
    (r"\bOpening\b", "Session"),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\bawait asyncio\.sleep\b", "time.sleep"),
    (r"\bimport asyncio\b", "import time"),
    (r"\bgrpc\.aio\.AioRpcError\b", "grpc.RpcError"),
    (r"\bgrpc\.aio\b", "grpc"),
    (r"\ban `async ", "a `"),
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\b__a(?=(iter|next|enter|exit)__)", "__"),
    (r"\b(Stop)?Async(?=(Client|Session|Stream|Iterator|Iteration)\b)", r"\1"),
    (r"\b(_|_calls_|_scoring_)async\b", r"\1sync"),
    (
        r"To be made and used within one event loop, by any number of its tasks\. Calls that fail",
        "Calls may run in several threads at once. Those that fail",
    ),
    (r"Ends the request;", "Ends the request, from any thread;"),
]


class GeneratedModules(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        protos = self._protos()
        if self.target_name == "sdist":
            build_data["force_include"][str(protos / "recurve")] = "proto/recurve"
            # In the repository it is a link, which would lead nowhere.
            licence = pathlib.Path(self.root, "LICENSE")
            del build_data["force_include"][str(licence)]
            build_data["force_include"][str(licence.resolve())] = licence.name
            return
        if version == "editable":  # imported from where it lies
            self._generate(protos, pathlib.Path(self.root, "src"))
            return
        self._made = pathlib.Path(tempfile.mkdtemp())
        self._generate(protos, self._made)
        build_data["force_include"][str(self._made / "recurve")] = "recurve"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            shutil.rmtree(self._made)

    def _generate(self, protos: pathlib.Path, out: pathlib.Path) -> None:
        generate_messages(protos, out)
        generate_sync(pathlib.Path(self.root, "src/recurve/_async"), out / "recurve/_sync")

    def _protos(self) -> pathlib.Path:
        """The folder of recurve/v1/*.proto: in a source package, or in the repository."""
        root = pathlib.Path(self.root)
        for folder in (root / "proto", root.parents[1] / "proto"):
            if any(folder.glob("recurve/v1/*.proto")):
                return folder
        raise FileNotFoundError(
            "the protocol's files, recurve/v1/*.proto, are neither in ./proto nor in ../../proto: "
            "build from the repository or from a source package"
        )


def generate_messages(protos: pathlib.Path, out: pathlib.Path) -> None:
    """Writes recurve/v1/*_pb2.py and their .pyi under `out`."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    package = out / "recurve" / "v1"
    package.mkdir(parents=True, exist_ok=True)
    files = [
        path.relative_to(protos).as_posix() for path in sorted(protos.glob("recurve/v1/*.proto"))
    ]
    descriptors = package / "descriptors"
    arguments = ["protoc", f"--proto_path={protos}", f"--pyi_out={out}"]
    arguments.append(f"--descriptor_set_out={descriptors}")
    if protoc.main(arguments + files) != 0:
        raise RuntimeError("protoc refuses the protocol's files; its own words are above")
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        module = out / file.name.replace(".proto", "_pb2.py")
        # The pool takes a file once it has those that this one imports.
        imports = "".join(
            f"\nimport {name.removesuffix('.proto').replace('/', '.')}_pb2  # noqa: F401\n"
            for name in file.dependency
        )
        module.write_text(
            MODULE.format(
                proto=file.name, imports=imports, descriptor=file.SerializeToString()
            )
        )
        types = module.with_suffix(".pyi")
        # protoc leaves open what the mappings are of that a message can be made from.
        types.write_text(
            re.sub(r"\b_Mapping\b(?=[],])", "_Mapping[str, object]", types.read_text())
        )
    descriptors.unlink()
    (package / "__init__.py").write_text('"""The messages of the protocol, version 1."""\n')


def generate_sync(sources: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the client that blocks to `out`. Fails if a replacement is not needed any more."""
    texts = {path.name: path.read_text() for path in sources.glob("*.py")}
    for pattern, replacement in WITHOUT_WAITING:
        replaced = {name: re.subn(pattern, replacement, text) for name, text in texts.items()}
        if not any(count for _, count in replaced.values()):
            raise RuntimeError(f"nothing in {sources} matches {pattern}")
        texts = {name: text for name, (text, _) in replaced.items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text)
