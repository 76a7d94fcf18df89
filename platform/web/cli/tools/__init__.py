"""Words that work on files: quantize, calibrate-kv, backup, db, secrets; and bench."""
