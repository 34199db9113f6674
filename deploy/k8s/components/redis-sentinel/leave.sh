# Before a server ends: a primary hands over to a replica first, which takes a second; the Sentinels
# would take five to notice its end.
. /etc/valkey/common.sh
[ "$(primary $others)" = "$self" ] || exit 0
for node in $others; do
  sentinel "$node" failover | grep -q OK && break
done
for _ in $(seq 20); do
  [ "$(primary $others)" = "$self" ] || exit 0
  sleep 1
done
