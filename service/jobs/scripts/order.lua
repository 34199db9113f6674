-- The order of a model's queue. Every script may use it.
--
-- Tenants take turns by start-time fair queueing (Goyal, Vin and Cheng 1996) in predicted
-- device-seconds over their weight. Jobs of one tenant are ordered by place.
--
--   queue:model:tenant         queued jobs of a tenant, by place
--   lane:model:bucket:tenant   the same for one bucket
--   tenants:model              tenants with queued jobs, by order: tag minus the advance for the
--                              priority of their first job
--   line:model:bucket          those of them with jobs in one bucket
--   tags:model                 hash, tenant: its tag, where its next job starts in virtual time
--   idle:model                 tenants without queued jobs whose tag is ahead of virtual time
--   virtual:model              virtual time: the tag up to which tenants have been served
--   busy:model                 time since which jobs have been queued without a break
--   backlog:model              hash, tenant: predicted device-seconds of its queued jobs
--   weights:model              hash, tenant: its weight, as of its last accepted job
--   queued:model               number of queued jobs
--   waiting:model              queued jobs, by the time at which they were queued last
--   latest:model               queued jobs with a deadline, by the latest start that meets it
--   compiling:tenant           hash, job: claimed with compiling, until when it counts as that

local HEAD = 256 -- tenants read together
local CHUNK = 32 -- members of a sorted set read together
local INSTANT = 0.000001 -- of virtual time
local COMPILE_S = 60 -- default compile time

local function of_model(kind, model, a, b) -- lengths keep 'a:b' + 'c' from 'a' + 'b:c'
  local start = prefix .. kind .. ':' .. #model .. ':' .. model .. ':'
  return b and start .. #a .. ':' .. a .. ':' .. b or start .. a
end

local function virtual_time(model)
  return tonumber(redis.call('GET', key('virtual', model)) or 0)
end

-- Returns a tenant's tag. An idle tenant starts at the current virtual time, or later.
local function tag_of(model, tenant)
  local tag = redis.call('HGET', key('tags', model), tenant)
  if tag then return tonumber(tag) end
  local ahead = redis.call('ZSCORE', key('idle', model), tenant)
  return math.max(tonumber(ahead or 0), virtual_time(model))
end

local function first_of(jobs)
  return redis.call('ZRANGE', jobs, 0, 0)[1]
end

-- Returns the duration of a job on the calling worker relative to the fastest one.
local function slowness_in(bucket)
  return args.slowness_in[bucket] or args.slowness
end

-- Iterates over a sorted set, with scores. The first member is read alone, since it nearly always
-- suffices. Returned members may be removed meanwhile; at most `most` may stay.
local function heads(set, most)
  local flat, at = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES'), 0
  local rank, count = 0, nil

  local function read_on()
    local left = redis.call('ZCARD', set)
    local first_stays = redis.call('ZSCORE', set, flat[1]) and 1 or 0
    rank = rank + (count and #flat / 2 - (count - left) or first_stays)
    local more = math.min(CHUNK, most - rank)
    count, at = left, 0
    flat = more > 0 and redis.call('ZRANGE', set, rank, rank + more - 1, 'WITHSCORES') or {}
  end

  return function()
    if at > 0 and at == #flat then read_on() end
    at = at + 2
    return flat[at - 1], tonumber(flat[at])
  end
end

-- Returns the advance between tenants for a priority, in device-seconds.
local function worth(priority)
  return ((tonumber(priority) or 1) - 1) * args.advance_s
end

local function worth_of(id)
  return worth((fields(id, 'priority')))
end

local function undone_of(kept, steps)
  return 1 - math.min(1, (tonumber(kept) or 0) / math.max(1, tonumber(steps) or 1))
end

-- Returns the bucket of a second pass from its JSON; nil: the job has one pass.
local function later_of(second_pass)
  return second_pass and cjson.decode(second_pass).bucket
end

-- Reads only the facts that decide whether a worker may take a job, since many jobs are skipped.
local function glance(id)
  local tenant, weight, version, deadline, run_s, kept, steps, bucket, deaths, most, later,
    credited, guaranteed, accepted, avoid = fields(id, 'tenant', 'weight', 'version', 'deadline_at',
      'run_s', 'kept', 'steps', 'bucket', 'deaths', 'max_compiling', 'second_pass', 'credited',
      'guaranteed', 'accepted', 'avoid')
  return {
    tenant = tenant, weight = tonumber(weight) or 1, version = tonumber(version) or 0,
    deadline = tonumber(deadline), run_s = tonumber(run_s), undone = undone_of(kept, steps),
    bucket = bucket, later = later_of(later), deaths = deaths, max_compiling = tonumber(most),
    credited = credited, guaranteed = guaranteed, accepted = accepted, avoid = avoid}
end

-- Reads all facts of a job that scripts need, at once.
local function facts_of(id)
  local f = redis.call('HMGET', key('job', id), 'model', 'bucket', 'tenant', 'place', 'cost',
    'weight', 'kept', 'steps', 'latest_start', 'accepted', 'attempts', 'fence', 'state', 'priority',
    'images', 'version', 'deadline_at', 'run_s', 'queued_at', 'deaths', 'started_at', 'room',
    'max_compiling', 'compile_s', 'loras', 'second_pass', 'credited', 'guaranteed', 'draft_steps',
    'avoid')
  local model, bucket, tenant = f[1], f[2], f[3]
  local cost = tonumber(f[5]) or 0
  return {
    id = id, model = model, bucket = bucket, tenant = tenant, place = f[4],
    cost = cost, own = cost * undone_of(f[29], f[8]), weight = tonumber(f[6]) or 1,
    undone = undone_of(f[7], f[8]), latest = f[9],
    accepted = f[10], attempts = tonumber(f[11]) or 0, fence = tonumber(f[12]) or 0,
    state = f[13], priority = tonumber(f[14]) or 1, worth = worth(f[14]),
    images = tonumber(f[15]) or 1, version = tonumber(f[16]) or 0,
    deadline = tonumber(f[17]), run_s = tonumber(f[18]),
    queued_at = tonumber(f[19]) or 0, deaths = f[20], started = f[21], room = f[22],
    max_compiling = tonumber(f[23]), compile_s = tonumber(f[24]) or 0,
    loras = f[25], later = later_of(f[26]), credited = f[27], guaranteed = f[28], avoid = f[30],
    queue = of_model('queue', model, tenant), lane = of_model('lane', model, bucket, tenant)}
end

-- Marks a claimed job whose programs may have to be compiled. The mark counts until its first
-- step. If the job ends before, it counts for the expected compile time, because a compilation
-- cannot be stopped.
local function compiles(job)
  if not job.max_compiling then return end
  local set = key('compiling', job.tenant)
  redis.call('HSET', set, job.id, seconds(now + (job.compile_s > 0 and job.compile_s or COMPILE_S)))
  redis.call('EXPIRE', set, 3600)
end

-- Returns whether workers already compile for as many other jobs of its tenant as allowed.
local function compiles_enough(id, job)
  if not job.max_compiling then return false end
  local set, count = key('compiling', job.tenant), 0
  local flat = redis.call('HGETALL', set)
  for i = 1, #flat, 2 do
    local state, step = fields(flat[i], 'state', 'step')
    local begun = (tonumber(step) or 0) > 0
    if not begun and (state == 'running' or now < tonumber(flat[i + 1])) then
      if flat[i] ~= id then count = count + 1 end
    else
      redis.call('HDEL', set, flat[i])
    end
  end
  return count >= job.max_compiling
end

-- Reserves a job for this worker: for that time, no other worker makes room for it.
local function reserve(id, room_s)
  redis.call('HSET', key('job', id), 'room', args.pool .. ' ' .. seconds(now + room_s))
end

-- Returns whether another worker has reserved a job. Args: room: that field of the job.
local function is_reserved(room)
  local pool, until_s = string.match(room or '', '^(.*) (%S+)$')
  return pool and pool ~= args.pool and tonumber(until_s) > now
end

-- Returns the orders of the given tenants: {{tenant, order}, …}
local function orders_of(model, tenants)
  local found = {last = math.huge}
  local orders = redis.call('ZMSCORE', key('tenants', model), unpack(tenants))
  for i, tenant in ipairs(tenants) do
    found[i] = {tenant = tenant, order = tonumber(orders[i])}
  end
  return found
end

-- Returns those of the first `count` tenants in order that have jobs in a bucket.
local function among_the_first(count, model, line)
  local flat = redis.call('ZRANGE', key('tenants', model), 0, count - 1, 'WITHSCORES')
  local tenants, found = {}, {last = tonumber(flat[#flat])}
  for i = 1, #flat, 2 do tenants[#tenants + 1] = flat[i] end
  for i, is_in in ipairs(redis.call('SMISMEMBER', line, unpack(tenants))) do
    if is_in == 1 then
      found[#found + 1] = {tenant = tenants[i], order = tonumber(flat[2 * i])}
    end
  end
  return found
end

-- Returns the next tenants by turn in a bucket, for `wanted` jobs: {{tenant, order}, …}, and
-- `last`: all other tenants come after this order. Exact if few tenants, or a good part of all,
-- have jobs in the bucket. Otherwise the best of a sample, so that the search stays short.
local function head_of_line(model, bucket, wanted)
  local line = of_model('line', model, bucket)
  local count = redis.call('SCARD', line)
  if count == 0 then return {last = math.huge} end
  if count <= HEAD then return orders_of(model, redis.call('SMEMBERS', line)) end
  -- Read twice as many as expected, since a second read is more expensive.
  local one_in = redis.call('ZCARD', key('tenants', model)) / count
  for _, far in ipairs({math.min(HEAD, math.ceil(2 * (wanted + 1) * one_in)), HEAD}) do
    local found = among_the_first(far, model, line)
    if #found > 0 then return found end
  end
  return orders_of(model, redis.call('SRANDMEMBER', line, HEAD))
end

local function first_turn(turns)
  local first = nil
  for _, turn in ipairs(turns) do
    if not first or turn.order < first.order then first = turn end
  end
  return first
end

-- Sets a tenant's tag, and its order if it has queued jobs, which is returned.
local function set_tag(job, tag)
  local model, tenant = job.model, job.tenant
  local first = first_of(job.queue)
  if first then
    local order = tag - worth_of(first)
    redis.call('HSET', key('tags', model), tenant, seconds(tag))
    redis.call('ZADD', key('tenants', model), seconds(order), tenant)
    return order
  end
  redis.call('HDEL', key('tags', model), tenant)
  redis.call('ZREM', key('tenants', model), tenant)
  -- Without queued jobs, no tenant is ahead of another.
  if tag > virtual_time(model) and redis.call('EXISTS', key('queued', model)) == 1 then
    redis.call('ZADD', key('idle', model), seconds(tag), tenant)
  else
    redis.call('ZREM', key('idle', model), tenant) -- a refund may end its lead
  end
end

local function count_out(model)
  if redis.call('DECR', key('queued', model)) == 0 then
    redis.call('DEL', key('queued', model), key('idle', model), key('virtual', model),
      key('busy', model))
  end
end

local function set_time(model, to)
  redis.call('SET', key('virtual', model), seconds(to))
  redis.call('ZREMRANGEBYSCORE', key('idle', model), '-inf', seconds(to))
end

-- Advances virtual time to a tenant whose turn came with this job.
local function pass_time(job)
  local tag = tag_of(job.model, job.tenant)
  set_time(job.model, math.max(virtual_time(job.model), math.min(tag, tag - job.worth)))
end

-- Returns whether the charge at a job's start still counts. Charges are forgotten when the queue
-- is empty.
local function is_charged(model, started)
  local since = redis.call('GET', key('busy', model))
  return since and tonumber(started) >= tonumber(since)
end

-- Corrects a tenant's charge when a claim ends: it was charged the job's predicted cost, except
-- for its audition's share. Args: device_seconds: used in this claim and earlier ones.
local function settle_charge(job, device_seconds)
  local more = (device_seconds - job.own) / job.weight
  if more ~= 0 and is_charged(job.model, job.started) then
    set_tag(job, tag_of(job.model, job.tenant) + more)
  end
end

-- Returns the tag of a tenant without queued jobs, and advances virtual time by an instant.
-- Otherwise tenants that arrive at the same time would be ordered by name, and new ones could
-- always overtake the first.
local function begin(model, tenant)
  local tag, time_now = tag_of(model, tenant), virtual_time(model)
  if tag <= time_now then set_time(model, time_now + INSTANT) end
  return tag
end

local function enqueue(id)
  local job = facts_of(id)
  local is_there = redis.call('EXISTS', job.queue) == 1
  local tag = (is_there and tag_of or begin)(job.model, job.tenant)
  redis.call('ZADD', job.queue, job.place, id)
  redis.call('ZADD', job.lane, job.place, id)
  redis.call('HSET', key('job', id), 'queued_at', seconds(now))
  redis.call('ZADD', key('waiting', job.model), seconds(now), id)
  if redis.call('INCR', key('queued', job.model)) == 1 then
    redis.call('SET', key('busy', job.model), seconds(now))
  end
  redis.call('HINCRBYFLOAT', key('backlog', job.model), job.tenant, seconds(job.cost))
  redis.call('HSET', key('weights', job.model), job.tenant, job.weight)
  if job.latest then redis.call('ZADD', key('latest', job.model), job.latest, id) end
  redis.call('ZREM', key('idle', job.model), job.tenant)
  set_tag(job, tag)
  redis.call('SADD', of_model('line', job.model, job.bucket), job.tenant)
  redis.call('PUBLISH', key('queued'), job.model)
end

-- Removes a job from the queue, and charges its tenant. Returns the tenant's order afterwards;
-- nil: it has no further job in the bucket.
local function dequeue(job, device_seconds)
  local tag = tag_of(job.model, job.tenant) + device_seconds / job.weight
  redis.call('ZREM', job.queue, job.id)
  redis.call('ZREM', job.lane, job.id)
  redis.call('ZREM', key('waiting', job.model), job.id)
  if job.latest then redis.call('ZREM', key('latest', job.model), job.id) end
  local order = set_tag(job, tag)
  if order then
    redis.call('HINCRBYFLOAT', key('backlog', job.model), job.tenant, seconds(-job.cost))
  else
    redis.call('HDEL', key('backlog', job.model), job.tenant)
    redis.call('HDEL', key('weights', job.model), job.tenant)
  end
  count_out(job.model)
  if order and redis.call('EXISTS', job.lane) == 1 then return order end
  redis.call('SREM', of_model('line', job.model, job.bucket), job.tenant)
end
