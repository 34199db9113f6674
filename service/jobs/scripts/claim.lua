-- Hands jobs to a pool: queued → running. A first one, then those of its bucket, the tenants by
-- turns, while their pictures fit; a first one that needs more than that goes alone, and so does
-- one whose last pool died with it: nobody else should be found beside it a second time.
--
-- First comes a job with a deadline, by its latest start, if its tenant is not too far ahead of its
-- share; or else the tenant's whose turn it is. For a while a job of a warm bucket goes before that.
-- args:  call (of this request, random), answer_ms (how long it may be sent again), pool, model,
--        slots, version, lease_s, warm (buckets that this pool has compiled), warm_s (how long a job
--        of another one waits for a pool that has its own), slowness (how many times as long a job
--        takes here as on the fastest pool), credit_s (device-seconds by which a deadline may bring
--        a tenant ahead), advance_s, max_events
-- Keys:  call:call  and common's
-- Gives: {job, …}, and 'newer' at the end where a job of a newer wire version came up
-- Sent twice: gives what it took before and what is still held.

local LOOKED_AT = 16 -- jobs or tenants at the head of an order, so that a claim stays short

local function jobs(claims)
  local found = {}
  for _, claim in ipairs(claims) do
    if is_held(claim[1], claim[2]) then
      found[#found + 1] = whole_job(claim[1])
    end
  end
  return found
end

local before = redis.call('GET', key('call', args.call))
if before then return jobs(cjson.decode(before)) end

local newer = false

-- Whether this pool may take it: one that reads it, and that is fast enough where others are.
local function suits(id)
  local version, deadline, run_s = fields(id, 'version', 'deadline_at', 'run_s')
  if tonumber(version) > args.version then
    newer = true
    return false
  end
  if not deadline or not run_s or args.slowness <= 1 then return true end
  return now + run_s * args.slowness <= tonumber(deadline)
end

local function urgent()
  local time_now = virtual_time(args.model)
  for _, id in ipairs(redis.call('ZRANGE', key('latest', args.model), 0, LOOKED_AT - 1)) do
    local tenant, weight = fields(id, 'tenant', 'weight')
    local is_near = tag_of(args.model, tenant) <= time_now + args.credit_s / (tonumber(weight) or 1)
    if not expire(id) and is_near and suits(id) then return id end
  end
end

local function in_turn()
  for _, tenant in ipairs(redis.call('ZRANGE', key('tenants', args.model), 0, LOOKED_AT - 1)) do
    local queue = of_model('queue', args.model, tenant)
    for _, id in ipairs(redis.call('ZRANGE', queue, 0, LOOKED_AT - 1)) do
      if not expire(id) and suits(id) then return id, tenant end
      if newer then return nil end
    end
  end
end

local function warm_instead(id)
  local bucket, queued = fields(id, 'bucket', 'queued_at')
  local best, place = nil, nil
  for _, warm in ipairs(args.warm) do
    if warm == bucket then return id end
    local first, _, order = turn_in_bucket(args.model, warm)
    if first and (not place or order < place) then best, place = first, order end
  end
  local has_waited = now - (tonumber(queued) or 0) >= args.warm_s
  return (best and not has_waited and not expire(best) and suits(best)) and best or id
end

local function first()
  local id = urgent()
  if id then return id end
  local tenant
  id, tenant = in_turn()
  if not id then return nil end
  pass_time(args.model, tenant, id)
  return warm_instead(id)
end

local function take(id)
  local job = facts_of(id)
  local attempt, fence = job.attempts + 1, job.fence + 1
  dequeue(job, job.cost * job.undone)
  redis.call('HSET', key('job', id), 'attempts', attempt, 'fence', fence, 'pool', args.pool,
    'started_at', seconds(now))
  redis.call('ZADD', key('leases'), seconds(now + args.lease_s), id)
  set_state(id, 'running', cjson.encode({pool = args.pool, attempt = attempt}))
  return {id, fence}
end

local claims, free = {}, args.slots
local id = free > 0 and first() or nil
local bucket = id and fields(id, 'bucket')
while id do
  local images, is_suspect = fields(id, 'images', 'deaths')
  if #claims > 0 and (tonumber(images) > free or is_suspect) then break end
  if not expire(id) then
    if not suits(id) then break end
    claims[#claims + 1] = take(id)
    free = is_suspect and 0 or free - images
  end
  if free <= 0 then break end
  id = turn_in_bucket(args.model, bucket)
end

if #claims > 0 then
  redis.call('SET', key('call', args.call), cjson.encode(claims), 'PX', args.answer_ms)
end
local found = jobs(claims)
if newer then found[#found + 1] = 'newer' end
return found
