-- A pool announces its model and that it is alive; those that no longer are leave.
-- args:  pool, model, ready, fresh_s, facts (layout, slots; or absent)
-- texts: spec (JSON)
-- Keys:  models  seen  pools:model  layouts:model
-- Sent twice: writes the same, a little later.

local pools, layouts = key('pools', args.model), key('layouts', args.model)
local known = redis.call('HGETALL', pools)
for i = 1, #known, 2 do
  if tonumber(string.match(known[i + 1], '%S+$')) < now then
    redis.call('HDEL', pools, known[i])
    redis.call('HDEL', layouts, known[i])
  end
end
redis.call('HSET', key('models'), args.model, ARGV[2])
redis.call('ZADD', key('seen'), seconds(now), args.model)
redis.call('HSET', pools, args.pool,
  (args.ready and 'ready ' or 'warming ') .. seconds(now + args.fresh_s))
redis.call('PEXPIRE', pools, math.ceil(args.fresh_s * 1000))
if args.facts then
  redis.call('HSET', layouts, args.pool, cjson.encode(args.facts))
  redis.call('PEXPIRE', layouts, math.ceil(args.fresh_s * 1000))
end
