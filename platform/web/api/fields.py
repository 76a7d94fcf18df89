"""Bounds of fields as the documents tell them. The registry checks them in words of its own, so msgspec does not."""

from typing import Annotated, Final

from msgspec import Meta

from loraplex.registry.access.passwords import MIN_PASSWORD_LENGTH
from loraplex.registry.access.scopes import ROLES, SCOPES
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.names import MAX_LABEL, NAME_PATTERN

from ..adapter_tokenizers.files import TOKENIZER_LIMITS

SHA256: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME: Final = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
REFERENCE: Final = {"type": "string", "pattern": f"^{NAME_PATTERN}(@(0|[1-9][0-9]{{0,62}}|{NAME_PATTERN}))?$"}
USER: Final = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._+@-]{0,62}$"}
FILES: Final = {"type": "string", "enum": [CONFIG_FILE, WEIGHTS_FILE, *TOKENIZER_LIMITS]}
IN_PATH: Final = {
    "name": NAME,
    "reference": REFERENCE,
    "alias": NAME,
    "filename": FILES,
    "prefix": {"type": "string", "pattern": "^[0-9a-fx]{12}$"},
    "user": USER,
    "tenant": NAME,
}
"""Of the management API: parameter -> its schema."""

Sha256 = Annotated[str, Meta(extra_json_schema=SHA256)]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
TenantName = Annotated[str, Meta(extra_json_schema=NAME)]
UserName = Annotated[str, Meta(extra_json_schema=USER)]
Label = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_LABEL})]
Password = Annotated[str, Meta(extra_json_schema={"minLength": MIN_PASSWORD_LENGTH})]
Role = Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
Scope = Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]
