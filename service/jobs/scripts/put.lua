-- Accepts a job: nothing → queued. A job whose files were copied ends at once: queued → succeeded.
-- args:  id, model, tenant, priority, priority_s (maximum extra wait that one level of priority
--        may cause for others), deadline_at (or absent), run_s (predicted seconds alone; or
--        absent), max_queued, tenant_max_queued (a quota; or absent), device_seconds_per_hour
--        (another; or absent), stored_bytes (another; or absent), cost, input_bytes (of its stored
--        inputs), kept (steps of its drafts; or absent), draft_bytes (of these), retention_s,
--        idempotency (key's name; or absent), digest, idempotency_ms, made (sums of its copied
--        files: see `Delivered`; or absent), refused (true: reject a new job), webhook (true:
--        announce its end)
-- texts: fields (name, value, … of the job's hash)
-- Keys:  job:id  jobs  kept:model  idempotency:tenant:digest  quota's and common's
-- Gives: {'new', created_at, number of its tenant's jobs before it, usage of a tenant with quotas}
--        or {'again' or 'old', the job} or {'full'} or {'conflict'} or {'refused'}
--        or {'quota', which, the tenant's usage, id of its oldest queued job if any}
-- Sent twice: returns the job that the first call put.

if redis.call('EXISTS', key('job', args.id)) == 1 then
  return {'again', whole_job(args.id)}
end

local idempotency = args.idempotency and key('idempotency', args.idempotency)
local used = idempotency and redis.call('GET', idempotency)
if used then
  local digest, id = string.match(used, '^(.*) (%S+)$')
  if digest ~= args.digest then return {'conflict'} end
  return {'old', whole_job(id)}
end

if args.refused then return {'refused'} end

-- Returns whether the queue is full for this tenant: it has its equal share of the limit. So no
-- tenant keeps others out.
local function is_full()
  local waiting = tonumber(redis.call('GET', key('queued', args.model)) or 0)
  if waiting < args.max_queued then return false end
  local mine = redis.call('ZCARD', of_model('queue', args.model, args.tenant))
  local tenants = redis.call('ZCARD', key('tenants', args.model))
  return mine > 0 and mine * tenants >= args.max_queued
end

local function taken()
  return standing(args.tenant, args.device_seconds_per_hour, args.retention_s)
end

if not args.made and is_full() then return {'full'} end
local quota = used_up(args.tenant, args.tenant_max_queued, args.device_seconds_per_hour,
  args.stored_bytes, args.input_bytes + args.draft_bytes)
if quota then
  local oldest = redis.call('ZRANGE', key('jobs', 'queued', args.tenant), 0, 0)[1]
  return {'quota', quota, taken(), oldest}
end

local newest = redis.call('ZRANGE', key('jobs'), -1, -1, 'WITHSCORES')
local accepted = math.max(now_us, (tonumber(newest[2]) or 0) + 1)
-- Within a tenant, no job waits longer than this for later jobs of a higher priority.
local place = accepted + (1 - args.priority) * args.priority_s * 1000000

redis.call('HSET', key('job', args.id), unpack(ARGV, 2))
local created_at = seconds(accepted / 1000000)
redis.call('HSET', key('job', args.id), 'created_at', created_at,
  'accepted', whole(accepted), 'place', whole(place))
redis.call('ZADD', key('jobs'), whole(accepted), args.id)
local undone = 1
if args.kept then
  redis.call('HSET', key('job', args.id), 'kept', args.kept, 'step', args.kept,
    'draft_steps', args.kept, 'draft_bytes', args.draft_bytes)
  redis.call('SADD', key('kept', args.model), args.id)
  undone = facts_of(args.id).undone
end
if args.deadline_at then
  redis.call('ZADD', key('deadlines'), args.deadline_at, args.id)
  redis.call('HSET', key('job', args.id),
    'latest_start', seconds(args.deadline_at - (args.run_s or 0) * undone))
end
if idempotency then
  redis.call('SET', idempotency, args.digest .. ' ' .. args.id, 'PX', args.idempotency_ms)
  redis.call('HSET', key('job', args.id), 'idempotency', args.idempotency)
end
keep(args.id, args.tenant, args.input_bytes + args.draft_bytes)
if args.webhook then redis.call('HSET', key('job', args.id), 'webhook', 0) end
if args.device_seconds_per_hour then promise(args.id, args.tenant, args.cost * undone) end
enqueue(args.id)
-- Its first event is implied, since a stream would be larger than the job.
redis.call('HSET', key('job', args.id), 'state', 'queued', 'events', 1)
redis.call('ZADD', key('jobs', 'queued', args.tenant), whole(accepted), args.id)
redis.call('PUBLISH', key('wake'), args.id)
local rank = redis.call('ZRANK', of_model('queue', args.model, args.tenant), args.id)
if args.made then
  redis.call('HSET', key('job', args.id), 'usage', '{"steps":0}')
  end_job(args.id, 'succeeded', '{}', args.made)
end
local has_quotas = args.tenant_max_queued or args.device_seconds_per_hour or args.stored_bytes
return {'new', created_at, rank, has_quotas and taken() or nil}
