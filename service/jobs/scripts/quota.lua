-- What a tenant may have waiting, and use in an hour. Prepended to every script, after order.lua.
--
--   jobs:queued:tenant  its queued jobs
--   promised:tenant     what its unended jobs are predicted to take
--   used:tenant         hash, minute: what jobs took that ended in it, for an hour
--   pools:model         read, to say when a place becomes free
--
-- What is promised and used is in millionths of a device-second: whole numbers, so that nothing is
-- left when all is given back. A job has the field `promised` if it counts there.

local MINUTE_S = 60
local HOUR_S = 60 * MINUTE_S
local NO_POOL_S = 30 -- where nothing can be predicted

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

-- Device-seconds that are used and promised; seconds until less of them than `quota` counts, and
-- until anything stops to count.
local function spent(tenant, quota)
  local minutes = minutes_of(tenant)
  local sum = tonumber(redis.call('GET', key('promised', tenant)) or 0)
  for _, minute in ipairs(minutes) do sum = sum + minute[2] end
  local left, wait_s = sum, 0
  for _, minute in ipairs(minutes) do
    if left < quota * 1000000 then break end
    left, wait_s = left - minute[2], minute[1]
  end
  -- What is promised has to be used first, and then to leave.
  if left >= quota * 1000000 then wait_s = HOUR_S + MINUTE_S end
  return sum / 1000000, wait_s, minutes[1] and minutes[1][1] or HOUR_S
end

local function ready_pools(model)
  local count = 0
  for _, state in ipairs(redis.call('HVALS', key('pools', model))) do
    local fresh_until = string.match(state, '^ready (%S+)$')
    if fresh_until and tonumber(fresh_until) >= now then count = count + 1 end
  end
  return count
end

-- Seconds until a pool is likely to take a queued job of the tenant: until virtual time has come to
-- its turn, while others get as much, and a job more has been done.
local function turn_s(tenant)
  local job = facts_of(redis.call('ZRANGE', key('jobs', 'queued', tenant), 0, 0)[1])
  local pools = ready_pools(job.model)
  if pools == 0 then return NO_POOL_S end
  local ahead = math.max(0, tag_of(job.model, tenant) - virtual_time(job.model)) * job.weight
  return (ahead * redis.call('ZCARD', key('tenants', job.model)) + job.cost) / pools
end

-- Why the tenant gets no further job now: the name of the quota, and the seconds until it may.
local function refusal(tenant, max_queued, quota)
  if max_queued and redis.call('ZCARD', key('jobs', 'queued', tenant)) >= max_queued then
    return 'queued', seconds(turn_s(tenant))
  end
  if quota then
    local sum, wait_s = spent(tenant, quota)
    if sum >= quota then return 'device-seconds', seconds(wait_s) end
  end
end
