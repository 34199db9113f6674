-- What a tenant may have waiting, use in an hour, and keep stored. Prepended to every script, after order.lua.
--
--   jobs:queued:tenant  its queued jobs
--   promised:tenant     what its unended jobs are predicted to take
--   used:tenant         hash, minute: what jobs took that ended in it, for an hour
--
--   stored:tenant       bytes of its jobs' inputs and outputs, while the jobs are kept
--
-- A job has the field `stored` for its part of that. What is promised and used is in millionths of a device-second: whole numbers, so that nothing is
-- left when all is given back. A job has the field `promised` if it counts there.

local MINUTE_S = 60
local HOUR_S = 60 * MINUTE_S

local function millionths(device_seconds)
  return whole(device_seconds * 1000000)
end

local function promise(id, tenant, device_seconds)
  redis.call('HSET', key('job', id), 'promised', millionths(device_seconds))
  redis.call('INCRBY', key('promised', tenant), millionths(device_seconds))
end

-- A job has ended, which it does once, and took so many device-seconds.
local function redeem(id, device_seconds)
  local tenant, promised = fields(id, 'tenant', 'promised')
  if not promised then return end
  if redis.call('DECRBY', key('promised', tenant), promised) <= 0 then
    redis.call('DEL', key('promised', tenant))
  end
  local used = key('used', tenant)
  redis.call('HINCRBY', used, math.floor(now / MINUTE_S), millionths(device_seconds))
  redis.call('EXPIRE', used, HOUR_S + MINUTE_S)
end

-- The store has so many further bytes of a job.
local function keep(id, tenant, bytes)
  if bytes <= 0 then return end
  redis.call('HINCRBY', key('job', id), 'stored', whole(bytes))
  redis.call('INCRBY', key('stored', tenant), whole(bytes))
end

-- The store is to have nothing of a job any more.
local function keep_nothing(id, tenant)
  local bytes = fields(id, 'stored')
  if bytes and redis.call('DECRBY', key('stored', tenant), bytes) <= 0 then
    redis.call('DEL', key('stored', tenant))
  end
end

local function stored_by(tenant)
  return tonumber(redis.call('GET', key('stored', tenant)) or 0)
end

-- Seconds until the first of a tenant's ended jobs leaves, by and large: the oldest of each end.
local function leaves_in(tenant, retention_s)
  local first = math.huge
  for _, state in ipairs({'succeeded', 'failed', 'canceled', 'expired'}) do
    local id = redis.call('ZRANGE', key('jobs', state, tenant), 0, 0)[1]
    local ended = id and tonumber((fields(id, 'finished_at')))
    if ended then first = math.min(first, ended) end
  end
  return math.max(0, math.min(first, now) + retention_s - now)
end

-- The minutes of the last hour: {{seconds until it has left the hour, what was used in it}, …}
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

-- Device-seconds that are used and promised, and the seconds until some of them stop to count; where
-- nothing of `quota` is left, until something is.
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
  return sum / 1000000, HOUR_S + MINUTE_S -- what is promised has to be used first, and to leave
end

local function queued_by(tenant)
  return redis.call('ZCARD', key('jobs', 'queued', tenant))
end

-- What a tenant has taken: {queued jobs, device-seconds, seconds until less or something, bytes,
-- seconds until some of them leave}
local function standing(tenant, quota, retention_s)
  local sum, next_s = spent(tenant, quota or math.huge)
  return {queued_by(tenant), seconds(sum), seconds(next_s), whole(stored_by(tenant)),
    seconds(leaves_in(tenant, retention_s))}
end

-- The quota for which the tenant gets no further job now; nil: it does.
local function used_up(tenant, max_queued, quota, stored_bytes, input_bytes)
  if max_queued and queued_by(tenant) >= max_queued then return 'queued' end
  if quota and spent(tenant, quota) >= quota then return 'device-seconds' end
  if not stored_bytes then return nil end
  local bytes = stored_by(tenant)
  if bytes >= stored_bytes or bytes + input_bytes > stored_bytes then return 'stored-bytes' end
end
