-- Removes a worker's registration; its model's spec stays.
-- args:  pool, model
-- Keys:  pools:model  layouts:model
-- Sent twice: the second call changes nothing.

redis.call('HDEL', key('pools', args.model), args.pool)
redis.call('HDEL', key('layouts', args.model), args.pool)
