"""What the admin API, the dashboard and the command line do alike: register, pin, undo, set profiles.

Knows no page and no document. Seam: one function a deed, which raises `ApiError`.
"""
