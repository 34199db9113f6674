-- A pool leaves; its model's spec stays.
-- args:  pool, model
-- Keys:  pools:model  layouts:model
-- Sent twice: there is nothing left to do.

redis.call('HDEL', key('pools', args.model), args.pool)
redis.call('HDEL', key('layouts', args.model), args.pool)
