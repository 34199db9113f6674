-- Quotas of a tenant: queued jobs, device-seconds per hour, stored bytes. Every script may use it.
--
--   jobs:queued:tenant  its queued jobs
--   promised:tenant     predicted device-seconds of its unended jobs
--   used:tenant         hash, minute: device-seconds of jobs that ended in it, for an hour
--
--   stored:tenant       bytes of its files and its jobs' inputs and outputs, while they are kept
--   storedfiles:tenant  hash, name: bytes of its files outside of jobs: of batches, adapters
--   files:tenant        its files of batches
--   openbatches:tenant  its batches that have not ended
--   left:id             accounting fields of a deleted job, for an hour
--
-- A job has the field `stored` for its part of the stored bytes. Its field `spent` (JSON) has, by
-- fence, the device-seconds of each claim and those for compiling, as reported by workers.
-- Promised and used amounts are millionths of a device-second: whole numbers, so that refunds
-- leave no remainder. A job has the field `promised` if it counts there.

local MINUTE_S = 60
local HOUR_S = 60 * MINUTE_S

local function millionths(device_seconds)
  return whole(device_seconds * 1000000)
end

local function promise(id, tenant, device_seconds)
  redis.call('HSET', key('job', id), 'promised', millionths(device_seconds))
  redis.call('INCRBY', key('promised', tenant), millionths(device_seconds))
end

-- Returns the hash with a job's `spent`: the job's own, or the accounting of a deleted one.
local function account_of(id)
  return redis.call('EXISTS', key('job', id)) == 1 and key('job', id) or key('left', id)
end

-- Stores the total {device-seconds, part for compiling} of a claim. Reports may be late or
-- repeated. Returns the device-seconds that were not reported before.
local function spend(account, fence, taken)
  local claims = cjson.decode(redis.call('HGET', account, 'spent') or '{}')
  local known = claims[whole(fence)] or {0, 0}
  local all = math.max(known[1], tonumber(millionths(taken[1])))
  local compiling = math.max(known[2], tonumber(millionths(taken[2])))
  claims[whole(fence)] = {all, compiling}
  redis.call('HSET', account, 'spent', cjson.encode(claims))
  return (all - known[1]) / 1000000
end

-- Returns the device-seconds of all claims of a job, and those for compiling; nil: none reported.
local function spent_by(account)
  local told = redis.call('HGET', account, 'spent')
  if not told then return nil end
  local all, compiling = 0, 0
  for _, claim in pairs(cjson.decode(told)) do
    all, compiling = all + claim[1], compiling + claim[2]
  end
  return all / 1000000, compiling / 1000000
end

-- Updates the usage that clients read. Args: steps: that ran, or nil: unchanged.
local function set_usage(account, steps)
  local all, compiling = spent_by(account)
  if not all then return end
  local usage = cjson.decode(redis.call('HGET', account, 'usage') or '{}')
  usage.steps = tonumber(steps) or usage.steps
  usage.device_seconds, usage.compile_seconds = all, compiling
  redis.call('HSET', account, 'usage', cjson.encode(usage))
end

local function use(tenant, device_seconds)
  local used = key('used', tenant)
  redis.call('HINCRBY', used, math.floor(now / MINUTE_S), millionths(device_seconds))
  redis.call('EXPIRE', used, HOUR_S + MINUTE_S)
end

-- Charges device-seconds that were reported after a job's end.
local function charge_late(account, device_seconds)
  local tenant, model, weight, started, promised = unpack(redis.call('HMGET', account, 'tenant',
    'model', 'weight', 'started_at', 'promised'))
  if promised then use(tenant, device_seconds) end
  settle_charge({model = model, tenant = tenant, weight = tonumber(weight) or 1, cost = 0, own = 0,
    started = started or now, queue = of_model('queue', model, tenant)}, device_seconds)
  set_usage(account)
end

-- Replaces the promised device-seconds of an ended job by the used ones.
local function redeem(id, device_seconds)
  local tenant, promised = fields(id, 'tenant', 'promised')
  if not promised then return end
  if redis.call('DECRBY', key('promised', tenant), promised) <= 0 then
    redis.call('DEL', key('promised', tenant))
  end
  use(tenant, device_seconds)
end

-- Adds bytes that were stored for a job.
local function keep(id, tenant, bytes)
  if bytes <= 0 then return end
  redis.call('HINCRBY', key('job', id), 'stored', whole(bytes))
  redis.call('INCRBY', key('stored', tenant), whole(bytes))
end

local function count_less(tenant, bytes)
  if redis.call('DECRBY', key('stored', tenant), bytes) <= 0 then
    redis.call('DEL', key('stored', tenant))
  end
end

-- Subtracts bytes that were deleted for a job.
local function keep_less(id, tenant, bytes)
  redis.call('HINCRBY', key('job', id), 'stored', -bytes)
  count_less(tenant, bytes)
end

-- Subtracts all stored bytes of a job.
local function keep_nothing(id, tenant)
  local bytes = fields(id, 'stored')
  if bytes then count_less(tenant, bytes) end
end

-- Adds the bytes of a tenant's file outside of jobs.
local function keep_file(tenant, name, bytes)
  redis.call('HINCRBY', key('storedfiles', tenant), name, whole(bytes))
  redis.call('INCRBY', key('stored', tenant), whole(bytes))
end

-- Subtracts the bytes of a file outside of jobs, and returns them.
local function keep_no_file(tenant, name)
  local bytes = redis.call('HGET', key('storedfiles', tenant), name)
  if not bytes then return 0 end
  redis.call('HDEL', key('storedfiles', tenant), name)
  count_less(tenant, bytes)
  return tonumber(bytes)
end

local RESULT_FILES = 2 -- maximum number of result files per batch

-- Returns the number of a tenant's files, including future results of its open batches.
local function files_of(tenant)
  return redis.call('ZCARD', key('files', tenant))
    + RESULT_FILES * redis.call('SCARD', key('openbatches', tenant))
end

local function stored_by(tenant)
  return tonumber(redis.call('GET', key('stored', tenant)) or 0)
end

-- Returns the approximate seconds until the first of a tenant's ended jobs is removed: the oldest
-- of each end state.
local function leaves_in(tenant, retention_s)
  local first = math.huge
  for _, state in ipairs({'succeeded', 'paused', 'failed', 'canceled', 'expired'}) do
    local id = redis.call('ZRANGE', key('jobs', state, tenant), 0, 0)[1]
    local ended = id and tonumber((fields(id, 'finished_at')))
    if ended then first = math.min(first, ended) end
  end
  return math.max(0, math.min(first, now) + retention_s - now)
end

-- Returns the minutes of the last hour: {{seconds until it leaves the hour, use in it}, …}
local function minutes_of(tenant)
  local found = {}
  local flat = redis.call('HGETALL', key('used', tenant))
  for i = 1, #flat, 2 do
    local leaves_s = (flat[i] + 1) * MINUTE_S + HOUR_S - now
    if leaves_s > 0 then
      found[#found + 1] = {leaves_s, tonumber(flat[i + 1])}
    else
      redis.call('HDEL', key('used', tenant), flat[i])
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- Returns the device-seconds used and promised, and the seconds until some of them no longer
-- count. If `quota` is used up, these are the seconds until some is available.
local function spent(tenant, quota)
  local minutes = minutes_of(tenant)
  local sum = tonumber(redis.call('GET', key('promised', tenant)) or 0)
  for _, minute in ipairs(minutes) do sum = sum + minute[2] end
  local left, bound = sum, quota * 1000000
  if left < bound then return sum / 1000000, minutes[1] and minutes[1][1] or HOUR_S end
  for _, minute in ipairs(minutes) do
    left = left - minute[2]
    if left < bound then return sum / 1000000, minute[1] end
  end
  return sum / 1000000, HOUR_S + MINUTE_S -- promised amounts must be used first, then expire
end

local function queued_by(tenant)
  return redis.call('ZCARD', key('jobs', 'queued', tenant))
end

-- Returns a tenant's usage: {queued jobs, device-seconds, seconds until less or some is available,
-- bytes, seconds until some of them are removed}
local function standing(tenant, quota, retention_s)
  local sum, next_s = spent(tenant, quota or math.huge)
  return {queued_by(tenant), seconds(sum), seconds(next_s), whole(stored_by(tenant)),
    seconds(leaves_in(tenant, retention_s))}
end

-- Returns the quota that prevents a further job now, or nil.
local function used_up(tenant, max_queued, quota, stored_bytes, input_bytes)
  if max_queued and queued_by(tenant) >= max_queued then return 'queued' end
  if quota and spent(tenant, quota) >= quota then return 'device-seconds' end
  if not stored_bytes then return nil end
  local bytes = stored_by(tenant)
  if bytes >= stored_bytes or bytes + input_bytes > stored_bytes then return 'stored-bytes' end
end
