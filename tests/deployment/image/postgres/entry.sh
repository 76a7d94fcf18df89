#!/bin/sh
set -eu
export PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  # shellcheck disable=SC2086
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres
fi
# The socket in /tmp: over /run, where its folder is, Podman mounts one of its own under a read-only root.
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
