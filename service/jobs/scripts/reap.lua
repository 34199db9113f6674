-- Takes back what lapsed: running → queued where the lease is over, or running → failed for good;
-- ends what is past its deadline; ended → nothing past the retention. Models that no pool has served
-- for long leave, too.
-- args:  batch (jobs of each kind), files (store keys at most), deleted (store keys),
--        lease_s, max_deaths (of its pools until a job is set aside), retention_s,
--        model_retention_s, max_events
-- texts: error of a job that is set aside (JSON)
-- Keys:  trash  models  seen  costs:model  pools:model  layouts:model  tags:model
--        forget's and common's
-- Gives: {1 where more is due, store keys to delete}
-- Sent twice: a store key is given until a later call names it in `deleted`.

for _, file in ipairs(args.deleted) do redis.call('SREM', key('trash'), file) end

local more = 0
local function due(set, until_s)
  local ids = redis.call('ZRANGE', key(set), '-inf', seconds(until_s), 'BYSCORE',
    'LIMIT', 0, args.batch)
  if #ids == args.batch then more = 1 end
  return ids
end

for _, id in ipairs(due('deadlines', now)) do expire(id) end
for _, model in ipairs(redis.call('HKEYS', key('models'))) do
  redis.call('ZADD', key('seen'), 'NX', seconds(now), model)
  for _, id in ipairs(due('latest:' .. model, now)) do expire(id) end
end
-- A server that was away has not heard from the pools that are alive: they get one more lease.
local up_s = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
local function is_unheard(id)
  local started = tonumber((fields(id, 'started_at')))
  return up_s < args.lease_s and started < now - up_s - 1
end

for _, id in ipairs(due('leases', now)) do
  if is_unheard(id) then
    redis.call('ZADD', key('leases'), seconds(now + args.lease_s), id)
  else
    lose(id, cjson.decode(ARGV[2]))
  end
end
for _, id in ipairs(due('ended', now - args.retention_s)) do forget(id) end

local function is_wanted(model)
  if redis.call('EXISTS', key('queued', model), key('pools', model)) > 0 then return true end
  for _, id in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    if fields(id, 'model') == model then return true end
  end
end

local unseen_since = seconds(now - args.model_retention_s)
for _, model in ipairs(redis.call('ZRANGE', key('seen'), '-inf', unseen_since, 'BYSCORE')) do
  if not is_wanted(model) then
    redis.call('HDEL', key('models'), model)
    redis.call('ZREM', key('seen'), model)
    redis.call('DEL', key('costs', model), key('layouts', model), key('tags', model))
  end
end

return {more, redis.call('SRANDMEMBER', key('trash'), args.files)}
