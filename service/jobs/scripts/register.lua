-- A pool announces its model and that it is alive. Those that no longer are `reap` takes out: of a
-- thousand pools each says so every few seconds, and this must not grow with their number.
-- args:  pool, model, ready, fresh_s, facts (layout, slots, warm, adapters, adapter_s; or absent)
-- texts: spec (JSON)
-- Keys:  models  seen  pools:model  layouts:model
-- Sent twice: writes the same, a little later.

local pools, layouts = key('pools', args.model), key('layouts', args.model)
redis.call('HSET', key('models'), args.model, ARGV[2])
redis.call('ZADD', key('seen'), seconds(now), args.model)
redis.call('HSET', pools, args.pool,
  (args.ready and 'ready ' or 'warming ') .. seconds(now + args.fresh_s))
redis.call('PEXPIRE', pools, math.ceil(args.fresh_s * 1000))
if args.facts then
  redis.call('HSET', layouts, args.pool, cjson.encode(args.facts))
  redis.call('PEXPIRE', layouts, math.ceil(args.fresh_s * 1000))
end
