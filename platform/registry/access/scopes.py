"""What a key may be made for."""

from typing import Final

INFERENCE, ADAPTERS, ADMIN = "inference", "adapters", "admin"
SCOPES: Final = (INFERENCE, ADAPTERS, ADMIN)
"""inference: use models; adapters: upload and manage them; admin: everything, keys included."""
