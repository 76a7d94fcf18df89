"""random_uuid: an id that no other request has."""

import uuid


def random_uuid() -> str:
    return uuid.uuid4().hex
