"""Shrink and expand loops; they import nothing of ours."""
