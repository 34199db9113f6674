-- Prepended to every script.
-- KEYS[1]  the prefix of every key
-- ARGV[1]  args, a JSON object; `max_events` wherever an event may be written
-- ARGV[2…] texts
--
-- Reads and writes, for the job `id`:
--   job:id  events:id  previews:id  queue:model  bucket:model:bucket
--   jobs  jobs:state  leases  deadlines  ended
-- Publishes on: wake  stopped  queued

local prefix = KEYS[1]
local args = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = now_us / 1000000

local function key(...)
  return prefix .. table.concat({...}, ':')
end

local function bucket_key(model, bucket)
  return key('bucket', #model, model, bucket) -- the length keeps 'a:b' + 'c' from 'a' + 'b:c'
end

local function whole(number)
  return string.format('%.0f', number) -- tostring would round to 14 digits
end

local function seconds(number)
  return string.format('%.6f', number)
end

local function fields(id, ...)
  return unpack(redis.call('HMGET', key('job', id), ...))
end

-- The job's hash, as a JSON list name, value, name, value, …; one long text is read much faster
-- than many short ones. Nil where there is no such job.
local function whole_job(id)
  local flat = redis.call('HGETALL', key('job', id))
  return #flat > 0 and cjson.encode(flat) or nil
end

-- Event ids are 1, 2, 3, … within a job, over events and previews alike.
local function append(stream, length, id, name, data)
  local n = redis.call('HINCRBY', key('job', id), 'events', 1)
  redis.call('XADD', stream, 'MAXLEN', length, n .. '-0', 'name', name, 'data', data)
  redis.call('PUBLISH', key('wake'), id)
end

local function emit(id, name, data)
  append(key('events', id), args.max_events, id, name, data)
end

local function set_state(id, state, data)
  local old, accepted = fields(id, 'state', 'accepted')
  if old then redis.call('ZREM', key('jobs', old), id) end
  redis.call('ZADD', key('jobs', state), accepted, id)
  redis.call('HSET', key('job', id), 'state', state)
  emit(id, state, data)
end

local function enqueue(id)
  local model, bucket, place = fields(id, 'model', 'bucket', 'place')
  redis.call('ZADD', key('queue', model), place, id)
  redis.call('ZADD', bucket_key(model, bucket), place, id)
  redis.call('PUBLISH', key('queued'), model)
end

local function dequeue(id)
  local model, bucket = fields(id, 'model', 'bucket')
  redis.call('ZREM', key('queue', model), id)
  redis.call('ZREM', bucket_key(model, bucket), id)
end

-- Back to its old place in the queue, to be begun anew.
local function requeue(id)
  redis.call('ZREM', key('leases'), id)
  redis.call('HDEL', key('job', id), 'started_at', 'step')
  enqueue(id)
  set_state(id, 'queued', '{}')
end

local function end_job(id, state, data)
  if fields(id, 'state') == 'queued' then dequeue(id) end
  redis.call('ZREM', key('leases'), id)
  redis.call('ZREM', key('deadlines'), id)
  redis.call('DEL', key('previews', id))
  redis.call('HSET', key('job', id), 'finished_at', seconds(now))
  redis.call('ZADD', key('ended'), seconds(now), id)
  set_state(id, state, data)
end

local function fail_job(id, failure)
  redis.call('HSET', key('job', id), 'error', failure)
  end_job(id, 'failed', '{"error":' .. failure .. '}')
end

local function is_ended(state)
  return state ~= 'queued' and state ~= 'running'
end

-- Ends an unended job whose deadline has passed; says whether it did.
local function expire(id)
  local deadline, state = fields(id, 'deadline_at', 'state')
  if not deadline or tonumber(deadline) > now then return false end
  end_job(id, 'expired', '{}')
  if state == 'running' then redis.call('PUBLISH', key('stopped'), id) end
  return true
end

local function is_held(id, fence)
  local state, current = fields(id, 'state', 'fence')
  return state == 'running' and tonumber(current) == fence
end

-- A claim ends once: `settle` writes down how, and a call that is sent again is told the same.
local function settle(id, act, answer)
  redis.call('HSET', key('job', id), 'settled', table.concat({args.fence, act, answer}, ' '))
  return answer
end

local function settled(id, act)
  local last = fields(id, 'settled')
  local fence, done, answer = string.match(last or '', '^(%d+) (%a+) (%a+)$')
  if tonumber(fence) == args.fence and done == act then return answer end
end
