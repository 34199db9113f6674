-- What a tenant may have waiting, and use in an hour. Prepended to every script, after order.lua.
--
--   jobs:queued:tenant  its queued jobs
--   promised:tenant     what its unended jobs are predicted to take
--   used:tenant         hash, minute: what jobs took that ended in it, for an hour
--
-- What is promised and used is in millionths of a device-second: whole numbers, so that nothing is
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

-- What a tenant has taken: {queued jobs, device-seconds, seconds until less or something}
local function standing(tenant, quota)
  local sum, next_s = spent(tenant, quota or math.huge)
  return {queued_by(tenant), seconds(sum), seconds(next_s)}
end

-- The quota for which the tenant gets no further job now; nil: it does.
local function used_up(tenant, max_queued, quota)
  if max_queued and queued_by(tenant) >= max_queued then return 'queued' end
  if quota and spent(tenant, quota) >= quota then return 'device-seconds' end
end
