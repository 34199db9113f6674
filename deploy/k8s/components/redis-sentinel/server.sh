# A server: the primary that the Sentinels name, or a replica of it.
. /etc/valkey/common.sh
# Permissions of replicas and Sentinels according to Valkey's documentation, and those of the
# queue's user according to docs/operations/redis.md.
users() {
  cat <<EOF
user replica on ${peers}resetkeys resetchannels -@all +psync +replconf +ping
user sentinel on ${peers}resetkeys allchannels -@all +multi +exec +slaveof +ping +subscribe +publish +config|rewrite +role +info +client|setname +client|kill +script|kill
user atelier on ${clients}resetkeys ~{atelier}:* ~{atelier-front}:* resetchannels &{atelier}:* -@all +@read +@write +@transaction +@pubsub -@dangerous +evalsha +script|load +wait +info +time +ping +select +client|setinfo
EOF
}
keep_users /tmp/users.acl 6379
# Other pods' Sentinels first: the one in this pod may have missed a failover.
until leader=$(primary $others "$ordinal"); do sleep 1; done
{
  cat /etc/valkey/valkey.conf /etc/valkey/replication.conf
  printf 'replica-announce-ip %s\nmasterauth "%s"\n' "$self" "$internal"
  [ "$leader" = "$self" ] || echo "replicaof $leader 6379"
} > /tmp/valkey.conf
exec valkey-server /tmp/valkey.conf
