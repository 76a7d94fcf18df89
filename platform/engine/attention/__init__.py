"""Paged attention behind one small interface, one backend per device."""
