"""Who may do what: tenants, users, sessions, API keys and their quotas.

Decides no request: `web/access` does. Seam: `Keys`, `Users`, `Tenants`.
"""
