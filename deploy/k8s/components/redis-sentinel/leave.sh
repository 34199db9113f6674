# Before a server stops, a primary hands over to a replica, which takes a second; the Sentinels
# would take five seconds to detect the loss.
. /etc/valkey/common.sh
[ "$(primary $others)" = "$self" ] || exit 0
for node in $others; do
  sentinel "$node" failover | grep -q OK && break
done
for _ in $(seq 20); do
  [ "$(primary $others)" = "$self" ] || exit 0
  sleep 1
done
