"""Pages of people and keys: login, account, users, keys, tenants."""
