"""Child processes: how they start, talk, stay watched, and end.

Knows no model and no scheduler. Seams: `link` (messages over a socket), `spawn`, `watchdog`.
"""
