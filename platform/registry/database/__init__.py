"""One database, SQLite or PostgreSQL: its tables, its migrations, its sessions.

Knows no rule of the registry. Seam: `Database.read()` and `Database.write()`.
"""
