-- Takes back what lapsed: running → queued or failed where the lease is over, unended → expired
-- past the deadline, ended → nothing past the retention.
-- args:  batch (jobs of each kind), files (store keys at most), deleted (store keys),
--        max_attempts, retention_s, max_events
-- texts: error of a job that was lost too often (JSON)
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
for _, id in ipairs(due('leases', now)) do
  if tonumber((fields(id, 'attempts'))) < args.max_attempts then
    requeue(id)
  else
    fail_job(id, ARGV[2])
  end
end
for _, id in ipairs(due('ended', now - args.retention_s)) do forget(id) end

return {more, redis.call('SRANDMEMBER', key('trash'), args.files)}
