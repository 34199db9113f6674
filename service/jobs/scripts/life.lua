-- What ends a job or puts it back. Every script may use it. Which of it a script
-- does, its header says in arrows, as `life.py` does; but `expire`, queued or running → expired, is
-- for all that meet a job past its deadline.
--
--   kept:model  jobs that went back and go on from a snapshot
--   webhooks:tenant, webhooks
--               ended jobs whose clients want to be told, and whose they are
--   notes       what became of jobs beside the caller's errand, for a reaper to count

local function is_ended(state)
  return state ~= 'queued' and state ~= 'running'
end

-- It gave what was asked for.
local function is_done(state)
  return state == 'succeeded' or state == 'paused'
end

-- What is kept of a job need not be done again: it may start later.
local function set_latest(job)
  if job.deadline and job.run_s then
    local latest = job.deadline - job.run_s * job.undone
    redis.call('HSET', key('job', job.id), 'latest_start', seconds(latest))
  end
end

-- Steps that pools have done of a job: not those of its audition.
local function steps_run(id)
  local step, drafted = fields(id, 'step', 'draft_steps')
  return math.max(0, (tonumber(step) or 0) - (tonumber(drafted) or 0))
end

-- Back to its old place in the queue, as far as is kept of it.
local function requeue(id)
  local job = facts_of(id)
  redis.call('ZREM', key('leases'), id)
  redis.call('HDEL', key('job', id), 'started_at', 'detail')
  set_resumed(id)
  set_latest(job)
  if job.undone < 1 then redis.call('SADD', key('kept', job.model), id) end
  settle_charge(job, job.own - job.cost * job.undone) -- until it ends, for what is kept alone
  set_usage(key('job', id), steps_run(id))
  enqueue(id)
  set_state(job, 'queued', '{}', 'step', fields(id, 'kept') or 0)
end

-- Device-seconds that a job has taken by now, as pools have told, or as far as one can tell: then of
-- a queued one, those that brought what is kept of it.
local function used_by(id)
  local told = spent_by(key('job', id))
  if told then return told end
  local cost, steps = fields(id, 'cost', 'steps')
  return (tonumber(cost) or 0) * math.min(1, steps_run(id) / math.max(1, tonumber(steps) or 1))
end

-- What is kept of a job that ends is of no use any more, but of one that is paused; of one that ends
-- badly, finished pictures neither, which nobody could fetch and no quota counts.
local function drop_snapshots(id, state)
  local before, drafts, tenant = fields(id, 'snapshots', 'draft_bytes', 'tenant')
  if not before or state == 'paused' then return end
  if drafts then
    keep_less(id, tenant, drafts)
    redis.call('HDEL', key('job', id), 'draft_bytes')
  end
  for _, snapshot in ipairs(is_done(state) and {} or cjson.decode(before)) do
    for _, output in ipairs(snapshot.outputs or {}) do
      redis.call('SADD', key('trash'), output.key)
    end
  end
  redis.call('HDEL', key('job', id), 'snapshots')
  redis.call('SADD', key('trash'), 'snapshots/' .. id .. '/')
end

-- Of an ended job: its client wants to be told.
local function announce(id, tenant)
  if not fields(id, 'webhook') then return end
  redis.call('ZADD', key('webhooks', tenant), seconds(now), id)
  redis.call('ZADD', key('webhooks'), 'NX', seconds(now), tenant)
end

-- It was told, or needs not be.
local function keep_quiet(id, tenant)
  redis.call('ZREM', key('webhooks', tenant), id)
  if redis.call('EXISTS', key('webhooks', tenant)) == 0 then
    redis.call('ZREM', key('webhooks'), tenant)
  end
end

-- Args: made: what it delivered (see `record_end`), or nil.
local function end_job(id, state, data, made)
  local job = facts_of(id)
  local used, steps = used_by(id), steps_run(id)
  set_usage(key('job', id), not is_done(state) and steps)
  if job.state == 'queued' then
    dequeue(job, math.max(0, used - (job.own - job.cost * job.undone))) -- that much is paid for
  end
  if job.state == 'running' then settle_charge(job, used) end
  redeem(id, used)
  redis.call('ZREM', key('leases'), id)
  redis.call('ZREM', key('deadlines'), id)
  redis.call('SREM', key('kept', job.model), id)
  redis.call('DEL', key('previews', id))
  redis.call('HDEL', key('job', id), 'detail')
  drop_snapshots(id, state)
  announce(id, job.tenant)
  redis.call('ZADD', key('ended'), seconds(now), id)
  set_state(job, state, data, 'finished_at', seconds(now))
  record_end(id, job.state, made)
end

local function ended_at(id)
  return (fields(id, 'finished_at'))
end

-- For `journey.py`, of a job that came with a trace: whose it is, and since when.
local function trace_of(id, since, is_claimed)
  local parent, tenant, fence, pool, attempts =
    fields(id, 'traceparent', 'tenant', 'fence', 'pool', 'attempts')
  if not parent or not since then return nil end
  return {id = id, parent = parent, tenant = tenant or nil, since = since, till = seconds(now),
    claimed = is_claimed, fence = fence or nil, pool = pool or nil, attempt = attempts or nil}
end

-- For `tally.py`: that a job has ended, or that its lease has lapsed, and whether it waits again.
local function note(id, event, trace)
  local model, served_as, tenant_class, created, finished, deadline, state = fields(id, 'model',
    'served_as', 'tenant_class', 'created_at', 'finished_at', 'deadline_at', 'state')
  redis.call('RPUSH', key('notes'), cjson.encode({
    event = event, model = model, served_as = served_as or nil, tenant_class = tenant_class or nil,
    created_at = created, finished_at = finished or nil, deadline_at = deadline or nil,
    again = state == 'queued', trace = trace}))
end

local function fail_job(id, failure)
  redis.call('HSET', key('job', id), 'error', failure)
  end_job(id, 'failed', '{"error":' .. failure .. '}')
end

-- A pool died or stalled with the job: back to the queue, or set aside as one that kills its pools.
-- `failure` lacks the trace.
local function lose(id, failure)
  local pool, step, before, since = fields(id, 'pool', 'step', 'deaths', 'started_at')
  local trace = trace_of(id, since, true)
  local deaths = cjson.decode(before or '[]')
  deaths[#deaths + 1] = {pool = pool, step = tonumber(step) or 0, at = now}
  redis.call('HSET', key('job', id), 'deaths', cjson.encode(deaths))
  if #deaths < args.max_deaths then
    requeue(id)
    return note(id, 'lost', trace)
  end
  failure.deaths = deaths
  fail_job(id, cjson.encode(failure))
  note(id, 'lost', trace)
  note(id, 'failed')
end

-- Ends an unended job whose deadline has passed, or passes before it could be done by anybody.
-- Says whether it did.
local function expire(id)
  local deadline, latest, state = fields(id, 'deadline_at', 'latest_start', 'state')
  if not deadline or is_ended(state) then return false end
  if now < tonumber(state == 'queued' and latest or deadline) then return false end
  local since = fields(id, state == 'queued' and 'queued_at' or 'started_at')
  local trace = trace_of(id, since, state == 'running')
  end_job(id, 'expired', '{}')
  note(id, 'expired', trace)
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
