"""Adapters that the server registers as it starts: vLLM's `--lora-modules`, as `name=path` or a JSON object."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import NoDecode

FORM: Final = 'name=path, or {"name": "...", "path": "..."}'


class LoraModule(BaseModel):
    """`path`: a folder of this machine, or owner/name@commit on the hub."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    path: str = Field(min_length=1)
    base_model_name: str | None = None
    """vLLM only shows it. The adapter's own configuration says what it was trained on."""


def _listed(value: object) -> object:
    """A list, a JSON list of such, or one module alone."""
    if isinstance(value, str):
        text = value.strip()
        value = _json(text) if text.startswith("[") else [text] if text else []
    return [_module(one) for one in value] if isinstance(value, Sequence) else value


def _module(given: Any) -> LoraModule:
    if isinstance(given, LoraModule):
        return given
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        name, found, path = given.partition("=")
        if not (found and name and path):
            raise ValueError(f"{given!r} is no adapter; write {FORM}")
        return LoraModule(name=name, path=path)
    fields = _json(given) if isinstance(given, str) else given
    try:
        return LoraModule.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ValueError(f"{given!r}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}; write {FORM}") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no JSON ({error}); write {FORM}") from None


def _differ(modules: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
    names = [module.name for module in modules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the name {name} stands twice; give each adapter its own")
    return modules


LoraModules = Annotated[tuple[LoraModule, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_differ)]
