-- Selects the job that a worker takes next. For the scripts that runner.py names.
--
-- A job with a deadline comes first, by its latest start, on one of three conditions: its tenant
-- is not too far ahead of its share, or was not when the job was accepted; or the job was
-- guaranteed its start, and no job that arrived earlier has its turn. Otherwise, the job whose
-- tenant's turn it is comes first. The selection uses a view of the queue:
--
--   suits       function of the view, an id and its job: whether the worker may take it
--   is_late     function of an id and its job: whether it can no longer start in time
--   back        a running job that is treated as if it were queued, with its `tag`, `order`,
--               `place` and `latest` there; or nil
--   newer       a job of a newer wire version was met: no job after it is taken by fair share
--   makes_room  the worker makes room for a suspect, and takes nothing else
--   passed      jobs that were skipped
--   looks       how many more may be skipped
-- Keys: latest:model  tenants:model  queue:model:tenant  lane:model:bucket:tenant  pools:model
--        pauses

-- Limits of a search: jobs skipped by their latest start and in total, and tenants considered by
-- turn.
local URGENT, LOOKS = 256, 512
local TENANTS = 16
local LANE = 16 -- jobs of a warm bucket; some may have a second pass in a cold one

-- Returns whether an operator has paused this worker, its pool of the settings, or its model.
local function is_paused()
  local name = string.match(args.pool, '^(.+)%-[^-]*$') or args.pool
  local found = redis.call('HMGET', key('pauses'),
    'model:' .. args.model, 'pool:' .. args.pool, 'pool:' .. name)
  return found[1] or found[2] or found[3]
end

local function view_of(suits, is_late, back)
  return {suits = suits, is_late = is_late, back = back, passed = {}, looks = LOOKS}
end

local is_warm = {}
for _, bucket in ipairs(args.warm) do is_warm[bucket] = true end

-- Returns whether the worker has programs for all passes of a job.
local function is_compiled(job)
  return is_warm[job.bucket] and (not job.later or is_warm[job.later])
end

-- Returns whether this worker reads a job's wire version.
local function is_read(view, job)
  view.newer = view.newer or job.version > args.version
  return job.version <= args.version
end

-- Returns whether this worker leaves a job to the model's other workers for now: of a verification,
-- the worker that generated the output.
local function is_left_to_others(id, job)
  if job.avoid ~= args.pool then return false end
  if redis.call('HLEN', key('pools', args.model)) < 2 then return false end
  return now - (tonumber((fields(id, 'queued_at'))) or 0) < args.warm_s
end

local known, is_first = {}, true

-- Reads a job: all facts of the first one, which nearly always is taken; fewer facts of others.
local function look_at(id)
  local job = known[id]
  if not job then
    job = is_first and facts_of(id) or glance(id)
    known[id], is_first = job, false
  end
  return job
end

local function pass_over(view, id)
  view.passed[id] = true
  view.looks = view.looks - 1
end

-- Returns a tenant's credit in device-seconds: in one second, a thousand workers use a thousand.
local function credit_of(model)
  return args.credit_s * math.max(1, redis.call('HLEN', key('pools', model)))
end

-- Returns the acceptance of the job whose turn it is, if only its turn lets it go next. Guaranteed
-- deadlines that arrived later wait for it. A job that this worker may not take delays none.
local function turn_since(view)
  local tenant = first_of(key('tenants', args.model))
  local id = first_of(of_model('queue', args.model, tenant))
  local credited, guaranteed, accepted = fields(id, 'credited', 'guaranteed', 'accepted')
  if credited or guaranteed or not accepted then return math.huge end
  return view:suits(id, look_at(id)) and tonumber(accepted) or math.huge
end

local function next_urgent(view)
  local back, tags, owed_since = view.back, {}, nil
  if not back and redis.call('EXISTS', key('latest', args.model)) == 0 then return nil end
  local time_now, credit_s = virtual_time(args.model), credit_of(args.model)
  if back then tags[back.tenant] = back.tag end

  local function is_near(job)
    if job.credited then return true end
    tags[job.tenant] = tags[job.tenant] or tag_of(args.model, job.tenant)
    if tags[job.tenant] <= time_now + credit_s / job.weight then return true end
    if not job.guaranteed then return false end
    owed_since = owed_since or turn_since(view)
    return tonumber(job.accepted) <= owed_since
  end

  local first = back and back.latest and is_near(back) and back or nil
  for id, latest in heads(key('latest', args.model), URGENT) do
    if first and first.latest <= latest then return first end
    local job = look_at(id)
    if not view.is_late(id, job) and is_near(job) then
      if view:suits(id, job) then return job.id and job or facts_of(id) end
      if view.makes_room then return nil end
      pass_over(view, id)
    end
  end
  return first
end

-- Iterates over tenants by turn, up to the tenant of the job that is back.
local function turns_of(view)
  local turns, back = heads(key('tenants', args.model), TENANTS), view.back
  if not back then return turns end
  return function()
    local tenant, order = turns()
    if tenant == back.tenant then tenant, order = turns() end
    local precedes = tenant and
      (order < back.order or order == back.order and tenant < back.tenant)
    return precedes and tenant or back.tenant
  end
end

-- Returns the first warm job of a tenant that may not start further compilations.
local function first_warm_of(view, tenant)
  local best = nil
  for _, bucket in ipairs(args.warm) do
    for id, place in heads(of_model('lane', args.model, bucket, tenant), LANE) do
      if best and place >= tonumber(best.place) then break end
      local job = facts_of(id)
      if not view.is_late(id, job) and view:suits(id, job) then
        best = job
        break
      end
    end
  end
  return best
end

local function next_in_turn(view)
  for tenant in turns_of(view) do
    local back = view.back and view.back.tenant == tenant and view.back
    for id, place in heads(of_model('queue', args.model, tenant), math.huge) do
      if back and back.place <= place then return back end
      local job = not view.passed[id] and look_at(id)
      if job and not view.is_late(id, job) then
        if view:suits(id, job) then return job.id and job or facts_of(id) end
        if view.newer or view.makes_room then return nil end
        pass_over(view, id)
        if not is_compiled(job) and compiles_enough(id, job) then
          local other = first_warm_of(view, tenant)
          if back and other and back.place <= tonumber(other.place) then return back end
          if other or view.newer or view.makes_room then return other end
          break
        end
      end
      if view.looks <= 0 then return nil end
    end
    if back then return back end
  end
end
