-- Reclaims lapsed leases: running → queued, or running → failed for good. Expires jobs past their
-- deadline, and removes jobs past their retention: ended → nothing. Also removes expired drafts of
-- paused jobs, models that no worker has served for long, workers without a heartbeat, and files of
-- jobs that were never put.
--
-- A lapsed lease indicates a crash only if its worker could reach Redis. It could not while the
-- server was down or hung. Nor is it certain in a long gap without reaps. Live workers then get
-- one more lease. Jobs whose lease still is not renewed are requeued without counting the attempt.
-- args:  call (random id of this call), answer_ms (lifetime of the stored answer), batch (maximum
--        number of jobs of each kind, and of notes), files (maximum number of store keys), deleted
--        (store keys), lease_s, silence_s (longer gaps between reaps count as an outage),
--        deposit_s (how long files wait for their job to be put), max_deaths (of its workers until
--        a job is failed), retention_s, model_retention_s
-- texts: poisonous (error of a job that crashed too many workers, JSON)
-- Keys:  trash  drafts  models  reaped  deposits  seen  costs:model  pools:model  layouts:model
--        tags:model  call:call  forget's and common's
-- Gives: {1 if more is due, store keys to delete, notes (see transitions.lua)}
-- Sent twice: a store key is returned until a later call names it in `deleted`. The notes of the
-- first call are returned again, and to no other call.

for _, file in ipairs(args.deleted) do redis.call('SREM', key('trash'), file) end

local more = 0
local function due(set, until_s)
  local ids = redis.call('ZRANGE', key(set), '-inf', seconds(until_s), 'BYSCORE',
    'LIMIT', 0, args.batch)
  if #ids == args.batch then more = 1 end
  return ids
end

for _, id in ipairs(due('deadlines', now)) do expire(id) end
for _, model in ipairs(redis.call('HKEYS', key('models'))) do
  redis.call('ZADD', key('seen'), 'NX', seconds(now), model)
  for _, id in ipairs(due('latest:' .. model, now)) do expire(id) end
end
local ECHO_S = 1 -- commands sent before an outage may be executed just after it
local ROUNDING_S = 0.001 -- of a lease that starts with the end of an outage

-- Returns the time since which workers could reach Redis without an outage.
local function heard_since()
  local up_s = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  local started = now - up_s - 1 -- or up to a second later
  local known = redis.call('GET', key('reaped')) or ''
  local last, since = string.match(known, '^(%S+) (%S+)$')
  if not last then return started end
  if tonumber(last) < started or now - tonumber(last) > args.silence_s then return now + ECHO_S end
  return tonumber(since)
end

local since = heard_since()
redis.call('SET', key('reaped'), seconds(now) .. ' ' .. seconds(since))

local function is_unheard(id)
  local claimed = tonumber((fields(id, 'started_at')))
  local renewed = tonumber(redis.call('ZSCORE', key('leases'), id)) - args.lease_s
  return math.max(claimed, renewed) < since + ROUNDING_S
end

local function lapse(id)
  if not is_unheard(id) then return lose(id, cjson.decode(ARGV[2])) end
  if now < since + args.lease_s then
    return redis.call('ZADD', key('leases'), seconds(since + args.lease_s), id)
  end
  local trace = trace_of(id, fields(id, 'started_at'), true)
  redis.call('HINCRBY', key('job', id), 'attempts', -1)
  requeue(id)
  note(id, 'excused', trace)
end

for _, id in ipairs(due('leases', now)) do lapse(id) end
for _, id in ipairs(due('ended', now - args.retention_s)) do forget(id) end

-- Deletes the drafts of a paused job, whose previews remain.
local function expire_drafts(id)
  local before, tenant = fields(id, 'snapshots', 'tenant')
  redis.call('ZREM', key('drafts'), id)
  if not before then return end -- deleted, maybe by an earlier version
  local bytes = 0
  for _, draft in ipairs(cjson.decode(before)) do bytes = bytes + (draft.bytes or 0) end
  keep_less(id, tenant, bytes)
  redis.call('HDEL', key('job', id), 'snapshots')
  redis.call('SADD', key('trash'), 'snapshots/' .. id .. '/')
end

for _, id in ipairs(due('drafts', now)) do expire_drafts(id) end

local function is_put(id)
  return redis.call('EXISTS', key('job', id)) == 1
end

for _, id in ipairs(redis.call('ZRANGE', key('deposits'), 0, args.batch - 1)) do
  if is_put(id) then redis.call('ZREM', key('deposits'), id) end
end
for _, id in ipairs(due('deposits', now - args.deposit_s)) do
  redis.call('ZREM', key('deposits'), id)
  if not is_put(id) then
    redis.call('SADD', key('trash'), 'inputs/' .. id .. '/', 'outputs/' .. id .. '/',
      'snapshots/' .. id .. '/')
  end
end

local function forget_dead_pools(model)
  local pools = redis.call('HGETALL', key('pools', model))
  for i = 1, #pools, 2 do
    if tonumber(string.match(pools[i + 1], '%S+$')) < now then
      redis.call('HDEL', key('pools', model), pools[i])
      redis.call('HDEL', key('layouts', model), pools[i])
    end
  end
end

for _, model in ipairs(redis.call('HKEYS', key('models'))) do forget_dead_pools(model) end

local function is_wanted(model)
  if redis.call('EXISTS', key('queued', model), key('pools', model)) > 0 then return true end
  for _, id in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    if fields(id, 'model') == model then return true end
  end
end

local unseen_since = seconds(now - args.model_retention_s)
for _, model in ipairs(redis.call('ZRANGE', key('seen'), '-inf', unseen_since, 'BYSCORE')) do
  if not is_wanted(model) then
    redis.call('HDEL', key('models'), model)
    redis.call('ZREM', key('seen'), model)
    redis.call('DEL', key('costs', model), key('layouts', model), key('tags', model))
  end
end

local function taken_notes()
  local before = redis.call('GET', key('call', args.call))
  if before then return cjson.decode(before) end
  local taken = redis.call('LPOP', key('notes'), args.batch)
  if not taken then return {} end
  if #taken == args.batch then more = 1 end
  redis.call('SET', key('call', args.call), cjson.encode(taken), 'PX', args.answer_ms)
  return taken
end

local notes = taken_notes()
return {more, redis.call('SRANDMEMBER', key('trash'), args.files), notes}
