# A server: the primary that the Sentinels name, or a replica of it.
. /etc/valkey/common.sh
# Rights of replicas and Sentinels as Valkey's documentation has them, those of the queue's user as
# docs/operations/redis.md has them.
users() {
  cat <<EOF
user replica on ${peers}resetkeys resetchannels -@all +psync +replconf +ping
user sentinel on ${peers}resetkeys allchannels -@all +multi +exec +slaveof +ping +subscribe +publish +config|rewrite +role +info +client|setname +client|kill +script|kill
user atelier on ${clients}resetkeys ~{atelier}:* ~{atelier-front}:* resetchannels &{atelier}:* -@all +@read +@write +@transaction +@pubsub -@dangerous +evalsha +script|load +wait +info +time +ping +select +client|setinfo
EOF
}
keep_users /tmp/users.acl 6379
# The other Sentinels first: this pod's own may have missed a failover while it was away.
until leader=$(primary $others "$ordinal"); do sleep 1; done
{
  cat /etc/valkey/valkey.conf /etc/valkey/replication.conf
  printf 'replica-announce-ip %s\nmasterauth "%s"\n' "$self" "$internal"
  [ "$leader" = "$self" ] || echo "replicaof $leader 6379"
} > /tmp/valkey.conf
exec valkey-server /tmp/valkey.conf
