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
--   virtual:model              virtual time: the tag of whoever was served last in its turn
--   backlog:model              hash, tenant: predicted device-seconds of its queued jobs
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

local function tag_of(model, tenant)
  local tag = redis.call('HGET', key('tags', model), tenant)
    or redis.call('ZSCORE', key('idle', model), tenant)
  return math.max(tonumber(tag or 0), virtual_time(model))
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

local function set_tag(model, tenant, tag)
  local jobs = of_model('queue', model, tenant)
  if redis.call('EXISTS', jobs) == 1 then
    redis.call('HSET', key('tags', model), tenant, seconds(tag))
    redis.call('ZREM', key('idle', model), tenant)
  else
    redis.call('HDEL', key('tags', model), tenant)
    -- Where nobody waits, nobody is ahead of anybody.
    if tag > virtual_time(model) and redis.call('EXISTS', key('queued', model)) == 1 then
      redis.call('ZADD', key('idle', model), seconds(tag), tenant)
    end
  end
  place_tenant(key('tenants', model), jobs, model, tenant)
end

local function count_out(model)
  if redis.call('DECR', key('queued', model)) == 0 then
    redis.call('DEL', key('queued', model), key('idle', model), key('virtual', model))
  end
end

-- A tenant's turn came: time goes on to it, and who has waited without jobs has waited enough.
local function pass_time(model, tenant)
  local tag = tag_of(model, tenant)
  redis.call('SET', key('virtual', model), seconds(tag))
  redis.call('ZREMRANGEBYSCORE', key('idle', model), '-inf', seconds(tag))
end

-- Device-seconds that a tenant is charged for a job, or given back where they are negative.
local function charge(id, device_seconds)
  local model, tenant, weight = fields(id, 'model', 'tenant', 'weight')
  set_tag(model, tenant, tag_of(model, tenant) + device_seconds / (tonumber(weight) or 1))
  redis.call('HINCRBYFLOAT', key('job', id), 'charged', seconds(device_seconds))
end

-- Predicted device-seconds of what is left to do.
local function left_of(id)
  local cost, kept, steps = fields(id, 'cost', 'kept', 'steps')
  local done = math.min(1, (tonumber(kept) or 0) / math.max(1, tonumber(steps) or 1))
  return (tonumber(cost) or 0) * (1 - done)
end

-- A claim is over, after so many device-seconds: the tenant was charged what was predicted.
local function settle_charge(id, device_seconds)
  charge(id, device_seconds - (tonumber((fields(id, 'charged'))) or 0))
  redis.call('HDEL', key('job', id), 'charged')
end

local function enqueue(id)
  local model, bucket, tenant, place, cost, latest =
    fields(id, 'model', 'bucket', 'tenant', 'place', 'cost', 'latest_start')
  local jobs, lane = of_model('queue', model, tenant), of_model('lane', model, bucket, tenant)
  redis.call('ZADD', jobs, place, id)
  redis.call('ZADD', lane, place, id)
  redis.call('HSET', key('job', id), 'queued_at', seconds(now))
  redis.call('INCR', key('queued', model))
  redis.call('HINCRBYFLOAT', key('backlog', model), tenant, cost or 0)
  if latest then redis.call('ZADD', key('latest', model), latest, id) end
  set_tag(model, tenant, tag_of(model, tenant))
  place_tenant(of_model('line', model, bucket), lane, model, tenant)
  redis.call('PUBLISH', key('queued'), model)
end

local function dequeue(id)
  local model, bucket, tenant, cost = fields(id, 'model', 'bucket', 'tenant', 'cost')
  local jobs, lane = of_model('queue', model, tenant), of_model('lane', model, bucket, tenant)
  local tag = tag_of(model, tenant)
  if redis.call('ZREM', jobs, id) == 0 then return end
  redis.call('ZREM', lane, id)
  redis.call('ZREM', key('latest', model), id)
  if redis.call('EXISTS', jobs) == 1 then
    redis.call('HINCRBYFLOAT', key('backlog', model), tenant, -(tonumber(cost) or 0))
  else
    redis.call('HDEL', key('backlog', model), tenant)
  end
  set_tag(model, tenant, tag)
  if redis.call('EXISTS', lane) == 0 then
    redis.call('ZREM', of_model('line', model, bucket), tenant)
  end
  count_out(model)
end
