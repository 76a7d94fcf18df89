"""The admin API of tenants, users, keys and the audit log."""
