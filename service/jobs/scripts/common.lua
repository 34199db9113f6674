-- Definitions that every script may use: arguments, keys, and writing of events.
-- KEYS[1]  the prefix of every key
-- ARGV[1]  args, a JSON object with the arguments of the script's header, and
-- args:  max_events (maximum number of stored events of one job), advance_s (advance between
--        tenants per level of priority, in device-seconds)
-- ARGV[2…] texts
--
-- With order.lua, quota.lua, ledger.lua and transitions.lua, reads and writes for the job `id`:
--   job:id  events:id  previews:id  jobs  jobs:state:tenant  leases  deadlines  ended  trash
--   and the keys that order.lua, quota.lua and ledger.lua name
-- Publishes on: wake  stopped  queued

local prefix = KEYS[1]
local args = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = now_us / 1000000

local function key(kind, a, b) -- plain joins, because it is called most often
  if b then return prefix .. kind .. ':' .. a .. ':' .. b end
  if a then return prefix .. kind .. ':' .. a end
  return prefix .. kind
end

local function whole(number)
  return string.format('%.0f', number) -- tostring rounds to 14 digits
end

local function seconds(number)
  return string.format('%.6f', number)
end

local function fields(id, ...)
  return unpack(redis.call('HMGET', key('job', id), ...))
end

-- Returns a job's hash as a JSON list of alternating names and values, or nil if there is no such
-- job. One long text is parsed much faster than many short ones.
local function whole_job(id)
  local flat = redis.call('HGETALL', key('job', id))
  return #flat > 0 and cjson.encode(flat) or nil
end

-- Appends an event. Event ids are 1, 2, 3, … within a job, over events and previews alike.
local function append(stream, length, id, name, data)
  local n = redis.call('HINCRBY', key('job', id), 'events', 1)
  redis.call('XADD', stream, 'MAXLEN', length, n .. '-0', 'name', name, 'data', data)
  redis.call('PUBLISH', key('wake'), id)
end

local function emit(id, name, data)
  append(key('events', id), args.max_events, id, name, data)
end

-- Sets a job's state, given its facts (order.lua), and further fields of its hash: name, value, …
local function set_state(job, state, data, ...)
  redis.call('ZREM', key('jobs', job.state, job.tenant), job.id)
  redis.call('ZADD', key('jobs', state, job.tenant), job.accepted, job.id)
  redis.call('HSET', key('job', job.id), 'state', state, ...)
  emit(job.id, state, data)
end
