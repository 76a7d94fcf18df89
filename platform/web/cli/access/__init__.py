"""Words about who may do what: keys, users, tenants, audit, usage, credentials."""
