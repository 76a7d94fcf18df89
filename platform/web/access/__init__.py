"""Who asks and what each credential may do: callers, permissions, sessions, passwords.

Reads no request: `endpoints` does. Seam: `Caller`, `Permission`.
"""
