"""What a key may be made for, and the roles of people."""

from typing import Final

INFERENCE, ADAPTERS, ADMIN = "inference", "adapters", "admin"
SCOPES: Final = (INFERENCE, ADAPTERS, ADMIN)
"""inference: use models; adapters: upload and manage them; admin: everything, keys included."""
VIEWER_ROLE, EDITOR_ROLE, ADMIN_ROLE = "viewer", "editor", "admin"
ROLES: Final = (VIEWER_ROLE, EDITOR_ROLE, ADMIN_ROLE)
"""viewer: look; editor: also use models and change adapters; admin: also keys, users and the audit log."""
