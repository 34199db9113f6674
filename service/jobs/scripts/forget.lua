-- Removes an ended job and everything that belongs to it; its files in the store go to the trash.
-- For the scripts that runner.py names.
-- Keys: job:id  events:id  idempotency:tenant:digest  jobs  jobs:state:tenant  ended  drafts
--       trash  webhooks  webhooks:tenant  stored:tenant

local function forget(id)
  local state, tenant, idempotency, outputs =
    fields(id, 'state', 'tenant', 'idempotency', 'outputs')
  for _, output in ipairs(cjson.decode(outputs or '[]')) do
    redis.call('SADD', key('trash'), output.key)
  end
  -- A crashed worker may have left files that no output names.
  redis.call('SADD', key('trash'), 'inputs/' .. id .. '/', 'outputs/' .. id .. '/',
    'snapshots/' .. id .. '/')
  local used = idempotency and redis.call('GET', key('idempotency', idempotency))
  if used and string.match(used, '%S+$') == id then
    redis.call('DEL', key('idempotency', idempotency))
  end
  keep_quiet(id, tenant)
  keep_nothing(id, tenant)
  redis.call('ZREM', key('jobs'), id)
  redis.call('ZREM', key('jobs', state, tenant), id)
  redis.call('ZREM', key('ended'), id)
  redis.call('ZREM', key('drafts'), id)
  redis.call('DEL', key('job', id), key('events', id))
end
