-- Which job a pool takes next. Prepended to the scripts that need it.
--
-- First comes a job with a deadline, by its latest start, if its tenant is not too far ahead of its
-- share; or else the tenant's whose turn it is. It is asked of a view of the queue:
--
--   suits       function of the view, an id and its job: whether the pool may take it
--   is_late     function of an id and its job: whether that may not start any more
--   back        a running job that is seen as if it were back in the queue, with its `tag`, `order`,
--               `place` and `latest` there; or nil
--   newer       a job of a newer wire version came up: by turns nothing is taken behind it
--   makes_room  the pool makes room for a suspect, and takes nothing else
--   passed      jobs that were passed over
--   looks       how many more may be
-- Keys: latest:model  tenants:model  queue:model:tenant  lane:model:bucket:tenant

-- So that a search stays short: jobs that it passes over, by their latest starts and in all, and
-- tenants whose turn it looks for.
local URGENT, LOOKS = 256, 512
local TENANTS = 16

local function view_of(suits, is_late, back)
  return {suits = suits, is_late = is_late, back = back, passed = {}, looks = LOOKS}
end

local is_warm = {}
for _, bucket in ipairs(args.warm) do is_warm[bucket] = true end

-- Whether this pool reads a job's wire version.
local function is_read(view, job)
  view.newer = view.newer or job.version > args.version
  return job.version <= args.version
end

local known, is_first = {}, true

-- All its facts, of the very first, which nearly always is the one.
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

local function next_urgent(view)
  local back, tags = view.back, {}
  if not back and redis.call('EXISTS', key('latest', args.model)) == 0 then return nil end
  local time_now = virtual_time(args.model)
  if back then tags[back.tenant] = back.tag end

  local function is_near(job)
    tags[job.tenant] = tags[job.tenant] or tag_of(args.model, job.tenant)
    return tags[job.tenant] <= time_now + args.credit_s / job.weight
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

-- Tenants by whose turn it is, until that of the job that is back.
local function turns_of(view)
  local turns, back = heads(key('tenants', args.model), TENANTS), view.back
  if not back then return turns end
  return function()
    local tenant, order = turns()
    if tenant == back.tenant then tenant, order = turns() end
    local is_first = tenant and
      (order < back.order or order == back.order and tenant < back.tenant)
    return is_first and tenant or back.tenant
  end
end

-- The first job of a tenant whose other ones may not be compiled for.
local function first_warm_of(view, tenant)
  local best = nil
  for _, bucket in ipairs(args.warm) do
    local id = first_of(of_model('lane', args.model, bucket, tenant))
    local job = id and facts_of(id)
    local is_next = job and (not best or tonumber(job.place) < tonumber(best.place))
    if is_next and not view.is_late(id, job) and view:suits(id, job) then best = job end
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
        if not is_warm[job.bucket] and compiles_enough(id, job) then
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
