-- Takes back what lapsed: running → queued where the lease is over, or running → failed for good;
-- ends what is past its deadline; ended → nothing past the retention. Models that no pool has served
-- for long leave, too, and pools that are no longer alive, and files of jobs that were never put.
--
-- A lease that lapsed tells of a death only where its pool could have been heard. While the server
-- was away, or stood still, or nobody reaped, no pool could: those that are alive get one more
-- lease from then on, and jobs of which nothing is heard even so go back unharmed.
-- args:  call (of this request, random), answer_ms (how long it may be sent again),
--        batch (jobs of each kind; notes), files (store keys at most), deleted (store keys),
--        lease_s, silence_s (without a reap: longer than that tells that all stood still),
--        deposit_s (that files wait for their job to be put),
--        max_deaths (of its pools until a job is set aside), retention_s,
--        model_retention_s
-- texts: poisonous (error of a job that is set aside, JSON)
-- Keys:  trash  models  reaped  deposits  seen  costs:model  pools:model  layouts:model  tags:model
--        call:call  forget's and common's
-- Gives: {1 where more is due, store keys to delete, notes (see life.lua)}
-- Sent twice: a store key is given until a later call names it in `deleted`; the notes of the first
-- time are given again, and never to another call.

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
local ECHO_S = 1 -- what was sent before a silence may be carried out just after it
local ROUNDING_S = 0.001 -- of a lease that begins with the end of a silence

-- Since when pools can be heard, without a silence.
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
