-- Says which job of a full pool should be put aside, if any: for one that waits, that is short
-- against the time until a slot is free by itself, and of higher priority or with a deadline that
-- it would miss until then. That is the one that the pool's next claim takes (`claim.lua`) once the
-- job is back in the queue: by any other rule the pool would take up again what it has put aside.
-- args:  pool, model, slots, free (slots; none, or less), soonest_s (until one is free by itself),
--        held ({{id, fence, left_s, pictures}, …}: those that may be put aside), ratio (how many times
--        as long as the one that waits takes), room_s (how long other pools make no room for it),
--        version, warm, warm_s, slowness, slowness_in, credit_s (as of a claim)
-- Keys:  queued:model  virtual:model  tenants:model  latest:model  queue:model:tenant  job:id
-- Keeps: of each held job, in its field `yields`, that it may be put aside; outlook.lua reads it
-- Gives: {id to put aside, id of the one that waits}, or nil
-- Sent twice: gives the same, if nothing has changed.

local URGENT, LOOKS, TENANTS = 256, 512, 16 -- as of a claim

local FRESH_S = 5 -- until a pool that asks every second must have asked again

-- For what comes next: these may be put aside, for a job that takes no longer than that.
for _, held in ipairs(args.held) do
  if is_held(held.id, held.fence) then
    redis.call('HSET', key('job', held.id), 'yields',
      seconds(now + FRESH_S) .. ' ' .. seconds(args.soonest_s / args.ratio))
  end
end

if redis.call('EXISTS', key('queued', args.model)) == 0 then return nil end

local time_now = virtual_time(args.model)
local is_warm = {}
for _, bucket in ipairs(args.warm) do is_warm[bucket] = true end

-- A running job as it would be in the queue: see release.lua.
local function put_aside(held)
  if not is_held(held.id, held.fence) then return nil end
  local tenant, place, cost, weight, step, steps, started, priority, deadline, run_s = fields(held.id,
    'tenant', 'place', 'cost', 'weight', 'step', 'steps', 'started_at', 'priority', 'deadline_at',
    'run_s')
  local undone, weight = undone_of(step, steps), tonumber(weight) or 1
  local first = redis.call('ZRANGE', of_model('queue', args.model, tenant), 0, 0, 'WITHSCORES')
  local back = is_charged(args.model, started) and (tonumber(cost) or 0) * undone / weight or 0
  local tag = tag_of(args.model, tenant) - back
  if not first[1] then tag = math.max(tag, time_now) end
  local place = tonumber(place) + (now - tonumber(started)) * 1000000
  local leads = not first[1] or place <= tonumber(first[2])
  return {
    id = held.id, left_s = held.left_s, pictures = held.pictures, tenant = tenant, place = place,
    weight = weight, tag = tag, order = tag - worth_of(leads and held.id or first[1]),
    priority = tonumber(priority) or 1, deadline = tonumber(deadline),
    latest = deadline and deadline - (tonumber(run_s) or 0) * undone}
end

-- A queued job that this pool may take; nil: it would be passed over, or has room elsewhere soon.
-- The second value: a job of a newer wire version, behind which nothing is claimed by turns.
local function look_at(id)
  local tenant, weight, priority, bucket, images, run_s, kept, steps, deadline, latest, queued, deaths,
    version, room, compile_s, most = fields(id, 'tenant', 'weight', 'priority', 'bucket', 'images',
    'run_s', 'kept', 'steps', 'deadline_at', 'latest_start', 'queued_at', 'deaths', 'version', 'room',
    'compile_s', 'max_compiling')
  if tonumber(version) > args.version then return nil, true end
  if latest and now >= tonumber(latest) or is_reserved(room) then return nil end
  local compiling = {tenant = tenant, max_compiling = tonumber(most)}
  if not is_warm[bucket] and compiles_enough(compiling) then return nil end
  local takes_s = run_s and run_s * slowness_in(bucket) * undone_of(kept, steps)
  if takes_s and not is_warm[bucket] then takes_s = takes_s + (tonumber(compile_s) or 0) end
  if deadline and takes_s and now + takes_s > tonumber(deadline) then return nil end
  return {
    id = id, tenant = tenant, weight = tonumber(weight) or 1, priority = tonumber(priority) or 1,
    bucket = bucket, images = tonumber(images) or 1, is_suspect = deaths,
    takes_s = takes_s, deadline = tonumber(deadline),
    latest = tonumber(latest), has_waited_s = now - (tonumber(queued) or 0)}
end

local known = {}

local function waiting(id)
  local seen = known[id]
  if not seen then
    seen = {look_at(id)}
    known[id] = seen
  end
  return seen[1], seen[2]
end

local function is_near(job, held)
  local tag = job.tenant == held.tenant and held.tag or tag_of(args.model, job.tenant)
  return tag <= time_now + args.credit_s / job.weight
end

-- By the latest start: the first, and whether anything is.
local function next_urgent(held)
  local is_urgent = held.latest and is_near(held, held)
  for id in heads(key('latest', args.model), URGENT) do
    local job = waiting(id)
    if job and is_urgent and held.latest <= job.latest then break end
    if job and is_near(job, held) then return job, true end
  end
  return nil, is_urgent
end

local function tenants_in_order(held)
  local found = {{held.order, held.tenant}}
  local flat = redis.call('ZRANGE', key('tenants', args.model), 0, TENANTS - 1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    if flat[i] ~= held.tenant then found[#found + 1] = {tonumber(flat[i + 1]), flat[i]} end
  end
  table.sort(found, function(one, other)
    if one[1] ~= other[1] then return one[1] < other[1] end
    return one[2] < other[2]
  end)
  return found
end

local function next_in_turn(held)
  local looks = LOOKS
  for _, pair in ipairs(tenants_in_order(held)) do
    local is_own = pair[2] == held.tenant
    for id, place in heads(of_model('queue', args.model, pair[2]), looks) do
      if is_own and held.place <= place then return nil end
      local job, is_newer = waiting(id)
      if is_newer then return nil end
      if job then return job end
      looks = looks - 1
    end
    if is_own or looks <= 0 then return nil end
  end
end

local function next_job(held)
  local job, is_urgent = next_urgent(held)
  if is_urgent then return job end
  job = next_in_turn(held)
  -- Of a cold bucket it would be kept waiting for a warm one, such as the held job's own.
  if job and (is_warm[job.bucket] or job.has_waited_s >= args.warm_s) then return job end
end

local function is_worth_it(job, held)
  if not job.takes_s or job.is_suspect then return false end
  if job.takes_s * args.ratio > args.soonest_s then return false end
  if args.free + held.pictures < math.min(job.images, args.slots) then return false end
  local in_time = held.deadline
  if in_time and now + held.left_s + job.takes_s * args.ratio > in_time then return false end
  if job.priority > held.priority then return true end
  return job.deadline and job.deadline - job.takes_s < now + args.soonest_s
end

local candidates = {}
for _, held in ipairs(args.held) do candidates[#candidates + 1] = put_aside(held) end
table.sort(candidates, function(one, other)
  if one.priority ~= other.priority then return one.priority < other.priority end
  return one.left_s > other.left_s
end)
for _, held in ipairs(candidates) do
  local job = next_job(held)
  if job and is_worth_it(job, held) then
    reserve(job.id, args.room_s)
    return {held.id, job.id}
  end
end
return nil
