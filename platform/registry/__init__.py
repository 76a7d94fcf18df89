"""The database and the artifact store: adapters, versions, aliases, keys, audit."""
