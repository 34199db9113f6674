# Functions for server.sh, sentinel.sh and leave.sh.
umask 077
NODES="0 1 2"
host() { echo "atelier-redis-$1.atelier-redis.$NAMESPACE.svc"; }
ordinal=${HOSTNAME##*-}
self=$(host "$ordinal")
others=$(for node in $NODES; do [ "$node" = "$ordinal" ] || echo "$node"; done)
# Password that servers and Sentinels use between each other.
internal=$(grep -m 1 . /run/secrets/atelier-redis/replication)

# The name of the password's variable depends on the client's version.
sentinel() {
  VALKEYCLI_AUTH=$internal REDISCLI_AUTH=$internal \
    timeout 3 valkey-cli --user sentinel -h "$(host "$1")" -p 26379 sentinel "$2" atelier
}

# Print the primary's name, from the first of the given nodes whose Sentinel answers.
primary() {
  for node in "$@"; do
    answer=$(sentinel "$node" get-master-addr-by-name | head -n 1)
    for name in $NODES; do
      [ "$answer" != "$(host "$name")" ] || { echo "$answer"; return; }
    done
  done
  return 1
}

digest() { sha256sum | cut -d' ' -f1; }
digests() {
  grep . "/run/secrets/atelier-redis/$1" | while read -r password; do
    printf '#%s ' "$(printf %s "$password" | digest)"
  done
}

# Write the users that `users` prints, and again after a change of the Secret. The user `reload` may
# only do that; only this container knows its password.
keep_users() {
  file=$1 port=$2 key=$(head -c 32 /dev/urandom | digest)
  write_users() {
    clients=$(digests password) peers=$(digests replication)
    [ -n "$clients" ] && [ -n "$peers" ] || return 1
    { echo "user default off"
      echo "user reload on #$(printf %s "$key" | digest) resetkeys resetchannels -@all +acl|load"
      users; } > "$file"
  }
  write_users
  while sleep 5; do
    before=$(cat "$file" || true)
    write_users || continue
    [ "$before" = "$(cat "$file")" ] || VALKEYCLI_AUTH=$key REDISCLI_AUTH=$key \
      valkey-cli --user reload -p "$port" acl load || rm "$file"
  done &
}
