-- The order of a model's queue. Prepended to every script, after common.lua.
--
-- Tenants take turns by start-time fair queueing (Goyal, Vin and Cheng 1996) in predicted
-- device-seconds over their weight; the jobs of one tenant go by their place.
--
--   queue:model:tenant         queued jobs of a tenant, by place
--   lane:model:bucket:tenant   the same, of one bucket
--   tenants:model              tenants with queued jobs, by order: tag, and what the priority of
--                              their first job is worth
--   line:model:bucket          the same, of one bucket; an order here may be out of date
--   tags:model                 hash, tenant: its tag, where its next job starts in virtual time
--   idle:model                 tenants without queued jobs whose tag lies ahead of that time
--   virtual:model              virtual time: as far as all who wait have come
--   backlog:model              hash, tenant: predicted device-seconds of its queued jobs
--   weights:model              hash, tenant: its weight, as its last accepted job has it
--   queued:model               how many jobs are queued
--   latest:model               queued jobs with a deadline, by the latest start that meets it

local function of_model(kind, model, ...)
  local parts = {kind, #model, model} -- lengths keep 'a:b' + 'c' from 'a' + 'b:c'
  local last = select('#', ...)
  for i, part in ipairs({...}) do
    if i < last then parts[#parts + 1] = #part end
    parts[#parts + 1] = part
  end
  return key(unpack(parts))
end

local function virtual_time(model)
  return tonumber(redis.call('GET', key('virtual', model)) or 0)
end

-- Who has waited without jobs begins where time is now, or later.
local function tag_of(model, tenant)
  local tag = redis.call('HGET', key('tags', model), tenant)
  if tag then return tonumber(tag) end
  local ahead = redis.call('ZSCORE', key('idle', model), tenant)
  return math.max(tonumber(ahead or 0), virtual_time(model))
end

-- What the priority of a job is worth between tenants: an advance of so many device-seconds.
local function advance(id)
  return ((tonumber((fields(id, 'priority'))) or 1) - 1) * args.advance_s
end

local function order_of(model, tenant, first)
  return tag_of(model, tenant) - advance(first)
end

local function first_of(jobs)
  return redis.call('ZRANGE', jobs, 0, 0)[1]
end

-- Where a tenant stands now in a set of tenants; it leaves when it has no job there.
local function place_tenant(set, jobs, model, tenant)
  local first = first_of(jobs)
  if not first then
    redis.call('ZREM', set, tenant)
    return nil
  end
  local order = seconds(order_of(model, tenant, first))
  redis.call('ZADD', set, order, tenant)
  return tonumber(order), first
end

-- The tenant whose turn it is in a bucket, and its first job there.
local function turn_in_bucket(model, bucket)
  local line = of_model('line', model, bucket)
  while true do
    local tenant, known = unpack(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES'))
    if not tenant then return nil end
    local lane = of_model('lane', model, bucket, tenant)
    local order, first = place_tenant(line, lane, model, tenant)
    if order and order <= tonumber(known) then return first, tenant, order end
  end
end

-- What the order asks of a job, read at once.
local function facts_of(id)
  local f = redis.call('HMGET', key('job', id), 'model', 'bucket', 'tenant', 'place', 'cost',
    'weight', 'kept', 'steps', 'latest_start', 'accepted', 'attempts', 'fence')
  local model, bucket, tenant = f[1], f[2], f[3]
  local steps = math.max(1, tonumber(f[8]) or 1)
  return {
    id = id, model = model, bucket = bucket, tenant = tenant, place = f[4],
    cost = tonumber(f[5]) or 0, weight = tonumber(f[6]) or 1,
    undone = 1 - math.min(1, (tonumber(f[7]) or 0) / steps), latest = f[9],
    accepted = f[10], attempts = tonumber(f[11]) or 0, fence = tonumber(f[12]) or 0,
    queue = of_model('queue', model, tenant), lane = of_model('lane', model, bucket, tenant),
    line = of_model('line', model, bucket)}
end

-- Gives a tenant its tag, and its place in the order if it has jobs.
local function set_tag(job, tag)
  local model, tenant = job.model, job.tenant
  local first = first_of(job.queue)
  if first then
    redis.call('HSET', key('tags', model), tenant, seconds(tag))
    redis.call('ZADD', key('tenants', model), seconds(tag - advance(first)), tenant)
    return
  end
  redis.call('HDEL', key('tags', model), tenant)
  redis.call('ZREM', key('tenants', model), tenant)
  -- Where nobody waits, nobody is ahead of anybody.
  if tag > virtual_time(model) and redis.call('EXISTS', key('queued', model)) == 1 then
    redis.call('ZADD', key('idle', model), seconds(tag), tenant)
  end
end

local function count_out(model)
  if redis.call('DECR', key('queued', model)) == 0 then
    redis.call('DEL', key('queued', model), key('idle', model), key('virtual', model))
  end
end

-- A tenant's turn came by this job: time goes on to it, as far as all who wait have come.
local function pass_time(model, tenant, first)
  local tag = tag_of(model, tenant)
  local to = math.max(virtual_time(model), math.min(tag, tag - advance(first)))
  redis.call('SET', key('virtual', model), seconds(to))
  redis.call('ZREMRANGEBYSCORE', key('idle', model), '-inf', seconds(to))
end

-- A claim is over. The job has taken so many device-seconds by now, in this claim and those before
-- it, and its tenant was charged what was predicted for all of it.
local function settle_charge(id, device_seconds)
  local job = facts_of(id)
  local more = (device_seconds - job.cost) / job.weight
  if more ~= 0 then set_tag(job, tag_of(job.model, job.tenant) + more) end
end

local function enqueue(id)
  local job = facts_of(id)
  local tag = tag_of(job.model, job.tenant)
  redis.call('ZADD', job.queue, job.place, id)
  redis.call('ZADD', job.lane, job.place, id)
  redis.call('HSET', key('job', id), 'queued_at', seconds(now))
  redis.call('INCR', key('queued', job.model))
  redis.call('HINCRBYFLOAT', key('backlog', job.model), job.tenant, seconds(job.cost))
  redis.call('HSET', key('weights', job.model), job.tenant, job.weight)
  if job.latest then redis.call('ZADD', key('latest', job.model), job.latest, id) end
  redis.call('ZREM', key('idle', job.model), job.tenant)
  set_tag(job, tag)
  place_tenant(job.line, job.lane, job.model, job.tenant)
  redis.call('PUBLISH', key('queued'), job.model)
end

-- Takes a job out of the queue, and charges its tenant so many device-seconds.
local function dequeue(job, device_seconds)
  local tag = tag_of(job.model, job.tenant) + device_seconds / job.weight
  redis.call('ZREM', job.queue, job.id)
  redis.call('ZREM', job.lane, job.id)
  if job.latest then redis.call('ZREM', key('latest', job.model), job.id) end
  set_tag(job, tag)
  if redis.call('EXISTS', job.queue) == 1 then
    redis.call('HINCRBYFLOAT', key('backlog', job.model), job.tenant, seconds(-job.cost))
  else
    redis.call('HDEL', key('backlog', job.model), job.tenant)
    redis.call('HDEL', key('weights', job.model), job.tenant)
  end
  if redis.call('EXISTS', job.lane) == 0 then redis.call('ZREM', job.line, job.tenant) end
  count_out(job.model)
end
