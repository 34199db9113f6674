-- Says which job of a full pool should be put aside, if any: for one that waits, that is short
-- against the time until a slot is free by itself, and of higher priority or with a deadline that
-- it would miss until then. That is the one that the pool's next claim takes (`claim_jobs.lua`) once the
-- job is back in the queue: by any other rule the pool would take up again what it has put aside.
-- args:  pool, model, slots, free (slots; none, or less), soonest_s (until one is free by itself),
--        held ({{id, fence, left_s, pictures}, …}: those that may be put aside), ratio (how many times
--        as long as the one that waits takes), room_s (how long other pools make no room for it),
--        version, warm, warm_s, slowness, slowness_in, credit_s (as of a claim)
-- Keys:  queued:model  virtual:model  job:id  next_job's
-- Keeps: of each held job, in its field `yields`, that it may be put aside; read_queue.lua reads it
-- Gives: {id to put aside, id of the one that waits}, or nil
-- Sent twice: gives the same, if nothing has changed.

local FRESH_S = 5 -- until a pool that asks every second must have asked again

-- For what comes next: these may be put aside, for a job that takes no longer than that, nor than
-- they have time to spare.
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

-- A running job as it would be in the queue: see release.lua.
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
  job.left_s, job.pictures = held.left_s, held.pictures
  return job
end

local function is_late(id, job)
  return job.deadline and now >= job.deadline - (job.run_s or 0) * job.undone
end

-- How long a queued job would take here; nil: nobody knows.
local function takes_s(job)
  local compile_s = is_compiled(job) and 0 or job.compile_s
  return job.run_s and job.run_s * slowness_in(job.bucket) * job.undone + compile_s
end

-- Whether this pool may take it in time, and it has room nowhere else soon. What it compiles for is
-- counted once, for all views.
local function suits(view, id, job)
  if not is_read(view, job) then return false end
  if job.must_wait == nil then
    job.must_wait = not is_compiled(job) and compiles_enough(id, job)
  end
  if job.must_wait then return false end
  local all = job.id and job or facts_of(id)
  if is_reserved(all.room) then return false end
  return not all.deadline or now + (takes_s(all) or 0) <= all.deadline
end

-- What the pool takes once that job is back in the queue; nil: nothing, or that job.
local function next_after(held)
  local view = view_of(suits, is_late, held)
  local job = next_urgent(view)
  if not job then
    job = next_in_turn(view)
    -- Of a cold bucket it would be kept waiting for a warm one, such as the held job's own.
    local waits = job and not is_compiled(job) and now - job.queued_at < args.warm_s
    if waits then return nil end
  end
  return job ~= held and job or nil
end

local function is_worth_it(job, held)
  local lasts_s = takes_s(job)
  if not lasts_s or job.deaths then return false end
  if lasts_s * args.ratio > args.soonest_s then return false end
  if args.free + held.pictures < math.min(job.images, args.slots) then return false end
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
