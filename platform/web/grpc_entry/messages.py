"""The messages of loraplex.proto as classes, compiled as they are first needed."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

PROTO: Final = Path(__file__).with_name("loraplex.proto")
PACKAGE: Final = "loraplex.v1"
SERVICE: Final = f"{PACKAGE}.Inference"


@cache
def message(name: str) -> Any:
    """The class of a message, such as GenerateRequest."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Of its own, so that a client in the same process may have the messages too."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        code = protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", PROTO.name])
        assert code == 0, "the file is ours"
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def given(sent: Any) -> dict[str, Any]:
    """The fields that a message sets, as JSON has them: lists and plain values."""
    found = {}
    for field, value in sent.ListFields():
        found[field.name] = list(value) if field.is_repeated and field.message_type is None else value
    return found
