-- Selects the job of a full worker to preempt, if any. The waiting job must be short compared with
-- the time until a slot becomes free. It must have a higher priority, or a deadline that it would
-- otherwise miss. It is the job that the worker's next claim takes (`claim_jobs.lua`) once the
-- preempted job is queued again; by another rule the worker might claim the preempted job again.
-- args:  pool, model, slots, free (slots; 0 or negative), soonest_s (until a slot becomes free),
--        held ({{id, fence, left_s, image_count}, …}: jobs that may be preempted), ratio (minimum
--        of soonest_s over the waiting job's duration), room_s (how long other workers do not make
--        room for it), version, warm, warm_s, slowness, slowness_in, credit_s (as of a claim)
-- Keys:  queued:model  virtual:model  job:id  next_job's
-- Writes: the field `yields` of each held job: that it may be preempted; read_queue.lua reads it
-- Gives: {id to preempt, id of the waiting job}, or nil
-- Sent twice: returns the same, if nothing has changed.

local FRESH_S = 5 -- validity of `yields`; workers call this every second

-- Mark these jobs as preemptible, with the maximum duration of the preempting job. It is limited
-- by the wait for a slot and by the time until the job's own deadline.
for _, held in ipairs(args.held) do
  if is_held(held.id, held.fence) then
    local deadline = tonumber(fields(held.id, 'deadline_at'))
    local spare_s = deadline and deadline - now - held.left_s or math.huge
    local most_s = math.max(0, math.min(args.soonest_s, spare_s)) / args.ratio
    redis.call('HSET', key('job', held.id), 'yields',
      seconds(now + FRESH_S) .. ' ' .. seconds(most_s))
  end
end

if redis.call('EXISTS', key('queued', args.model)) == 0 or is_paused() then return nil end

-- Returns a running job as it would be in the queue: see release.lua.
local function put_aside(held)
  if not is_held(held.id, held.fence) then return nil end
  local job = facts_of(held.id)
  local undone = undone_of(fields(held.id, 'step', 'steps'))
  local first = redis.call('ZRANGE', job.queue, 0, 0, 'WITHSCORES')
  local back = is_charged(args.model, job.started) and job.cost * undone / job.weight or 0
  job.tag = tag_of(args.model, job.tenant) - back
  if not first[1] then job.tag = math.max(job.tag, virtual_time(args.model)) end
  job.place = job.place + (now - job.started) * 1000000
  local leads = not first[1] or job.place <= tonumber(first[2])
  job.order = job.tag - (leads and job.worth or worth_of(first[1]))
  job.latest = job.deadline and job.deadline - (job.run_s or 0) * undone
  job.left_s, job.image_count = held.left_s, held.image_count
  return job
end

local function is_late(_, job)
  return job.deadline and now >= job.deadline - (job.run_s or 0) * job.undone
end

-- Returns the duration of a queued job here; nil: unknown.
local function takes_s(job)
  local compile_s = is_compiled(job) and 0 or job.compile_s
  return job.run_s and job.run_s * slowness_in(job.bucket) * job.undone + compile_s
end

-- Returns whether this worker may take a job in time and no other worker makes room for it. Its
-- compilation limit is checked once for all views.
local function suits(view, id, job)
  if not is_read(view, job) or is_left_to_others(id, job) then return false end
  if job.must_wait == nil then
    job.must_wait = not is_compiled(job) and compiles_enough(id, job)
  end
  if job.must_wait then return false end
  local all = job.id and job or facts_of(id)
  if is_reserved(all.room) then return false end
  return not all.deadline or now + (takes_s(all) or 0) <= all.deadline
end

-- Returns the job that the worker takes once the held job is queued again; nil: none, or the held
-- job.
local function next_after(held)
  local view = view_of(suits, is_late, held)
  local job = next_urgent(view)
  if not job then
    job = next_in_turn(view)
    -- A job of a cold bucket would wait for a warm one, such as the held job's own.
    local waits = job and not is_compiled(job) and now - job.queued_at < args.warm_s
    if waits then return nil end
  end
  return job ~= held and job or nil
end

local function is_worth_it(job, held)
  local lasts_s = takes_s(job)
  if not lasts_s or job.deaths then return false end
  if lasts_s * args.ratio > args.soonest_s then return false end
  if args.free + held.image_count < math.min(job.images, args.slots) then return false end
  local in_time = held.deadline
  if in_time and now + held.left_s + lasts_s * args.ratio > in_time then return false end
  if job.priority > held.priority then return true end
  return job.deadline and job.deadline - lasts_s < now + args.soonest_s
end

local candidates = {}
for _, held in ipairs(args.held) do candidates[#candidates + 1] = put_aside(held) end
table.sort(candidates, function(one, other)
  if one.priority ~= other.priority then return one.priority < other.priority end
  return one.left_s > other.left_s
end)
for _, held in ipairs(candidates) do
  local job = next_after(held)
  if job and is_worth_it(job, held) then
    reserve(job.id, args.room_s)
    return {held.id, job.id}
  end
end
return nil
