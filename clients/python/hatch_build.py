"""Makes the modules of the protocol's messages when the package is built.

grpcio-tools reads the .proto files and writes the types (.pyi). The modules themselves are written
here, from the descriptors: what protoc would write can be imported only with some versions of the
protobuf package, and this only calls what every version has.
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


class MessageModules(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        protos = self._protos()
        if self.target_name == "sdist":
            build_data["force_include"][str(protos / "recurve")] = "proto/recurve"
            return
        if version == "editable":  # imported from where it lies
            generate(protos, pathlib.Path(self.root, "src"))
            return
        self._made = pathlib.Path(tempfile.mkdtemp())
        generate(protos, self._made)
        build_data["force_include"][str(self._made / "recurve")] = "recurve"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            shutil.rmtree(self._made)

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


def generate(protos: pathlib.Path, out: pathlib.Path) -> None:
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
