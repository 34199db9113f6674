-- Registers a worker and its model, and renews its heartbeat. `reap` removes workers without a
-- heartbeat: a thousand workers call this every few seconds, so its cost must not grow with their
-- number.
-- args:  pool, model, ready, fresh_s, facts (layout, slots, warm, adapters, adapter_s; or absent)
-- texts: spec (JSON)
-- Keys:  models  seen  pools:model  layouts:model
-- Sent twice: writes the same with a slightly later time.

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
