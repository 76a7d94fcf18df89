#!/bin/sh
# Make the secrets of docker-compose.yml that are not there yet; never change one that is.
# The outer folder is closed to other users of this machine. The files are open to whoever gets to them, because each
# container mounts its own under a user of its own; what Prometheus and Grafana mount, a narrow umask has closed.
set -eu
cd "$(dirname "$0")/secrets"
umask 077
chmod 700 .
chmod 755 server
chmod -R go=rX ../prometheus ../grafana
for name in server/postgres_password grafana_password; do
  if [ ! -s "$name" ]; then
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "$name.new"
    chmod 444 "$name.new"
    mv "$name.new" "$name"
    echo "made deploy/secrets/$name"
  fi
done
