-- Accepts a job: nothing → queued.
-- args:  id, model, tenant, priority, priority_s (how long a level of priority may make others wait),
--        deadline_at (or absent), run_s (of one alone; or absent), max_queued,
--        tenant_max_queued (a quota; or absent), device_seconds_per_hour (another; or absent),
--        stored_bytes (another; or absent), cost, input_bytes (that the store has of it already),
--        retention_s, idempotency (key's name; or absent), digest, idempotency_ms,
--        refused (true: a new job is not to be taken), webhook (true: its end is announced)
-- texts: fields (name, value, … of the job's hash)
-- Keys:  job:id  jobs  idempotency:tenant:digest  quota's and common's
-- Gives: {'new' or 'old', the job} or {'full'} or {'conflict'} or {'refused'}
--        or {'quota', which, what the tenant has taken, id of its oldest queued job if any}
-- Sent twice: finds the job that it put before.

if redis.call('EXISTS', key('job', args.id)) == 1 then
  return {'new', whole_job(args.id)}
end

local idempotency = args.idempotency and key('idempotency', args.idempotency)
local used = idempotency and redis.call('GET', idempotency)
if used then
  local digest, id = string.match(used, '^(.*) (%S+)$')
  if digest ~= args.digest then return {'conflict'} end
  return {'old', whole_job(id)}
end

if args.refused then return {'refused'} end

-- For a tenant that has its even share of the places: nobody keeps the others out.
local function is_full()
  local waiting = tonumber(redis.call('GET', key('queued', args.model)) or 0)
  if waiting < args.max_queued then return false end
  local mine = redis.call('ZCARD', of_model('queue', args.model, args.tenant))
  local tenants = redis.call('ZCARD', key('tenants', args.model))
  return mine > 0 and mine * tenants >= args.max_queued
end

if is_full() then return {'full'} end
local quota = used_up(args.tenant, args.tenant_max_queued, args.device_seconds_per_hour,
  args.stored_bytes, args.input_bytes)
if quota then
  local oldest = redis.call('ZRANGE', key('jobs', 'queued', args.tenant), 0, 0)[1]
  local taken = standing(args.tenant, args.device_seconds_per_hour, args.retention_s)
  return {'quota', quota, taken, oldest}
end

local newest = redis.call('ZRANGE', key('jobs'), -1, -1, 'WITHSCORES')
local accepted = math.max(now_us, (tonumber(newest[2]) or 0) + 1)
-- Among a tenant's jobs: none waits longer than that for those of a higher priority behind it.
local place = accepted + (1 - args.priority) * args.priority_s * 1000000

redis.call('HSET', key('job', args.id), unpack(ARGV, 2))
redis.call('HSET', key('job', args.id), 'created_at', seconds(accepted / 1000000),
  'accepted', whole(accepted), 'place', whole(place))
redis.call('ZADD', key('jobs'), whole(accepted), args.id)
if args.deadline_at then
  redis.call('ZADD', key('deadlines'), args.deadline_at, args.id)
  redis.call('HSET', key('job', args.id),
    'latest_start', seconds(args.deadline_at - (args.run_s or 0)))
end
if idempotency then
  redis.call('SET', idempotency, args.digest .. ' ' .. args.id, 'PX', args.idempotency_ms)
  redis.call('HSET', key('job', args.id), 'idempotency', args.idempotency)
end
keep(args.id, args.tenant, args.input_bytes)
if args.webhook then redis.call('HSET', key('job', args.id), 'webhook', 0) end
if args.device_seconds_per_hour then promise(args.id, args.tenant, args.cost) end
enqueue(args.id)
-- Its first event is known without a stream, which would be larger than the job.
redis.call('HSET', key('job', args.id), 'state', 'queued', 'events', 1)
redis.call('ZADD', key('jobs', 'queued', args.tenant), whole(accepted), args.id)
redis.call('PUBLISH', key('wake'), args.id)
return {'new', whole_job(args.id)}
