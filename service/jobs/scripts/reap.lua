-- Takes back what lapsed: running → queued where the lease is over, or running → failed for good;
-- ends what is past its deadline; ended → nothing past the retention.
-- args:  batch (jobs of each kind), files (store keys at most), deleted (store keys),
--        lease_s, max_deaths (of its pools until a job is set aside), retention_s, max_events
-- texts: error of a job that is set aside (JSON)
-- Keys:  trash  models  forget's and common's
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

return {more, redis.call('SRANDMEMBER', key('trash'), args.files)}
