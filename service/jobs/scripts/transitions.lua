-- Ends and requeues jobs. Every script may use it. The header of each script lists its transitions
-- as arrows, as `state_machine.py` does. Only `expire`, queued or running → expired, is made by
-- every script that meets a job past its deadline.
--
--   kept:model  requeued jobs that resume from a snapshot
--   webhooks:tenant, webhooks
--               ended jobs to announce by webhook, and their tenants
--   notes       transitions made in addition to a script's main task, for a reaper to count

local function is_ended(state)
  return state ~= 'queued' and state ~= 'running'
end

-- Returns whether it is an end state with the requested result.
local function is_done(state)
  return state == 'succeeded' or state == 'paused'
end

-- Updates a job's latest start: saved steps need not be repeated, so it may start later.
local function set_latest(job)
  if job.deadline and job.run_s then
    local latest = job.deadline - job.run_s * job.undone
    redis.call('HSET', key('job', job.id), 'latest_start', seconds(latest))
  end
end

-- Returns the steps that workers have run for a job, without those of its audition.
local function steps_run(id)
  local step, drafted = fields(id, 'step', 'draft_steps')
  return math.max(0, (tonumber(step) or 0) - (tonumber(drafted) or 0))
end

-- Returns a job to its former place in the queue, to resume from its snapshots.
local function requeue(id)
  local job = facts_of(id)
  redis.call('ZREM', key('leases'), id)
  redis.call('HDEL', key('job', id), 'started_at', 'detail')
  set_resumed(id)
  set_latest(job)
  if job.undone < 1 then redis.call('SADD', key('kept', job.model), id) end
  settle_charge(job, job.own - job.cost * job.undone) -- saved steps only
  set_usage(key('job', id), steps_run(id))
  enqueue(id)
  set_state(job, 'queued', '{}', 'step', fields(id, 'kept') or 0)
end

-- Returns the device-seconds that a job has used, as reported by workers. Without a report they
-- are estimated from its steps; for a queued job, from its saved steps.
local function used_by(id)
  local told = spent_by(key('job', id))
  if told then return told end
  local cost, steps = fields(id, 'cost', 'steps')
  return (tonumber(cost) or 0) * math.min(1, steps_run(id) / math.max(1, tonumber(steps) or 1))
end

-- Deletes the snapshots of a job that ends, unless it is paused. If it ends without success, its
-- finished images are deleted, too: clients cannot fetch them, and no quota counts them.
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

-- Schedules the webhook of an ended job, if it has one.
local function announce(id, tenant)
  if not fields(id, 'webhook') then return end
  redis.call('ZADD', key('webhooks', tenant), seconds(now), id)
  redis.call('ZADD', key('webhooks'), 'NX', seconds(now), tenant)
end

-- Removes the webhook message of a job.
local function keep_quiet(id, tenant)
  redis.call('ZREM', key('webhooks', tenant), id)
  if redis.call('EXISTS', key('webhooks', tenant)) == 0 then
    redis.call('ZREM', key('webhooks'), tenant)
  end
end

-- Ends a job. Args: made: its deliveries (see `record_end`), or nil.
local function end_job(id, state, data, made)
  local job = facts_of(id)
  local used, steps = used_by(id), steps_run(id)
  set_usage(key('job', id), not is_done(state) and steps)
  if job.state == 'queued' then
    dequeue(job, math.max(0, used - (job.own - job.cost * job.undone))) -- the unpaid part
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

-- Returns the trace of a job for `job_spans.py`: its parent span, worker and start; nil without a
-- trace.
local function trace_of(id, since, is_claimed)
  local parent, tenant, fence, pool, attempts =
    fields(id, 'traceparent', 'tenant', 'fence', 'pool', 'attempts')
  if not parent or not since then return nil end
  return {id = id, parent = parent, tenant = tenant or nil, since = since, till = seconds(now),
    claimed = is_claimed, fence = fence or nil, pool = pool or nil, attempt = attempts or nil}
end

-- Stores a note for `metrics.py`: a job has ended, or its lease has lapsed, and whether it is
-- queued again.
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

-- Handles a crashed or stalled worker: requeues the job, or fails it as one that crashes its
-- workers. `failure` lacks the deaths.
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

-- Expires an unended job whose deadline has passed, or passes before any worker could finish it.
-- Returns whether it did.
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

-- A claim ends once: `settle` stores how, and a repeated call gets the same answer.
local function settle(id, act, answer)
  redis.call('HSET', key('job', id), 'settled', table.concat({args.fence, act, answer}, ' '))
  return answer
end

local function settled(id, act)
  local last = fields(id, 'settled')
  local fence, done, answer = string.match(last or '', '^(%d+) (%a+) (%a+)$')
  if tonumber(fence) == args.fence and done == act then return answer end
end
