# A Sentinel. Its configuration stores what it has discovered; the rest is written at each start.
. /etc/valkey/common.sh
users() {
  cat <<EOF
user sentinel on ${peers}resetkeys allchannels +@all
user atelier on ${clients}resetkeys resetchannels -@all +ping +sentinel|masters +client|setinfo
EOF
}
keep_users /tmp/sentinel.acl 26379
file=/data/sentinel.conf
learned=$(grep -sE '^sentinel (myid|monitor|config-epoch|leader-epoch|current-epoch|known-)' $file) ||
  # No configuration yet: use the primary of the others, or at the first start of all the first
  # node.
  learned="sentinel monitor atelier $(primary $others || host 0) 6379 2"
cat > $file <<EOF
port 26379
dir /tmp
aclfile /tmp/sentinel.acl
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $self
sentinel sentinel-user sentinel
sentinel sentinel-pass $internal
$learned
sentinel auth-user atelier sentinel
sentinel auth-pass atelier $internal
sentinel down-after-milliseconds atelier 5000
sentinel failover-timeout atelier 10000
sentinel parallel-syncs atelier 1
EOF
exec valkey-server $file --sentinel
