-- Claims jobs for a worker: queued → running. Takes a first job, then jobs of its bucket from all
-- tenants in turn, while their images fit. A first job with too many images is claimed alone.
--
-- A suspect is a job whose last worker crashed. It runs alone on a worker without other jobs, so
-- that a crash affects no other job and its cause is certain. For a while it is left to an idle
-- worker. Then a busy worker makes room for it, and claims nothing until its own jobs have ended.
--
-- next_job.lua selects the first job. For a limited time, two others may be preferred: a job of a
-- warm bucket, and a job of the same tenant and bucket whose adapters the worker has.
-- args:  call (random id of this call), answer_ms (lifetime of the stored answer), pool, model,
--        slots, version, lease_s, warm (buckets that this worker has compiled), may_compile
--        (false: claim no jobs of other buckets now), rides_wait (true: claim a job of another
--        bucket alone), warm_s (how long a job of another bucket waits for a worker that has
--        compiled it, and a verification for a worker other than the output's), adapters (digests
--        of those on the worker's device), slowness (duration of a job here relative to the fastest
--        worker), slowness_in (the same by bucket, where it differs), busy (true: the worker has
--        other jobs), room_s (how long no other worker makes room for the same suspect), credit_s
--        (device-seconds by which a deadline may bring a tenant ahead), origin (of the worker's
--        outputs, see `Origin`; its checkpoint is stored in the job)
-- Keys:  call:call  history  next_job's and common's
-- Gives: {job, …}, and 'newer' at the end if a job of a newer wire version was skipped
-- Sent twice: returns those jobs of the first call that are still held.

local NEIGHBOURS = 16 -- jobs scanned for one whose adapters are loaded

local function still_held(claims)
  local found = {}
  for _, claim in ipairs(claims) do
    if is_held(claim[1], claim[2]) then found[#found + 1] = whole_job(claim[1]) end
  end
  return found
end

local before = redis.call('GET', key('call', args.call))
if before then return still_held(cjson.decode(before)) end
if is_paused() then return {} end

-- Expires a job that is past its deadline; returns whether it did.
local function is_late(id, job)
  return job.deadline and expire(id)
end

-- Returns whether a suspect would run alone here. If not and it has waited long enough, the worker
-- makes room for it.
local function is_alone(view, id, job)
  if not job.deaths or not args.busy then return true end
  local suspect = facts_of(id)
  if now - suspect.queued_at >= args.warm_s and not is_reserved(suspect.room) then
    reserve(id, args.room_s)
    view.makes_room = true
  end
  return false
end

-- Returns whether this worker may take a job: it reads its version, need not leave it to others,
-- has its programs or may compile them, and is fast enough for the deadline or the fastest.
local function suits(view, id, job)
  if not is_read(view, job) or is_left_to_others(id, job) then return false end
  local is_cold = not is_compiled(job)
  if is_cold and (not args.may_compile or compiles_enough(id, job)) then return false end
  local slowness = slowness_in(job.bucket)
  local is_slow = job.deadline and job.run_s and slowness > 1
  if is_slow and now + job.run_s * job.undone * slowness > job.deadline then return false end
  return is_alone(view, id, job)
end

local view = view_of(suits, is_late)

-- Returns the next job by turn among the warm buckets.
local function first_warm()
  local best, place = nil, nil
  for _, bucket in ipairs(args.warm) do
    local turn = first_turn(head_of_line(args.model, bucket, 1))
    if turn and (not best or turn.order < best.order) then best, place = turn, bucket end
  end
  return best and facts_of(first_of(of_model('lane', args.model, place, best.tenant)))
end

local function warm_instead(job)
  if is_compiled(job) or now - job.queued_at >= args.warm_s then return job end
  local other = first_warm()
  if not other or other.deaths and args.busy then return job end
  return not is_late(other.id, other) and view:suits(other.id, other) and other or job
end

-- If nothing may be compiled: returns the first job that needs no compiling, however many precede
-- it. If it does not suit, the search by fair share scans up to LOOKS other jobs and returns none.
local function first_compiled()
  local job = first_warm()
  while job and is_late(job.id, job) do job = first_warm() end
  return job and view:suits(job.id, job) and job
end

local has_adapter = {}
for _, digest in ipairs(args.adapters) do has_adapter[digest] = true end

local function has_adapters(job)
  for _, lora in ipairs(job.loras and cjson.decode(job.loras) or {}) do
    if not has_adapter[lora.digest] then return false end
  end
  return true
end

-- Returns the first job of the same tenant and bucket whose adapters are already loaded.
local function loaded_instead(job)
  if has_adapters(job) or now - job.queued_at >= args.warm_s then return job end
  for id in heads(job.lane, NEIGHBOURS) do
    local other = id ~= job.id and facts_of(id)
    if other and has_adapters(other) and not (other.deaths and args.busy) and
        not is_late(id, other) and view:suits(id, other) then
      return other
    end
  end
  return job
end

local function first()
  local job = next_urgent(view)
  if job or view.makes_room then return job end
  job = not args.may_compile and first_compiled()
  if view.makes_room then return nil end
  job = job or next_in_turn(view)
  if not job then return nil end
  pass_time(job)
  return loaded_instead(warm_instead(job))
end

-- Fences continue after those of a server that this one has replaced, whose last claims may be
-- known only to their holders. After a promotion, which a second replication id indicates, the
-- base jumps to the time of the first claim.
local function base_of_fences()
  local replication = redis.call('INFO', 'replication')
  local id = string.match(replication, 'master_replid:(%x+)') or ''
  local replaced = string.match(replication, 'master_replid2:0*(%x*)') or ''
  local known, base = string.match(redis.call('GET', key('history')) or ' 0', '^(%x*) (%d+)$')
  if known == id then return tonumber(base) end
  if replaced ~= '' then base = whole(math.floor(now)) end
  redis.call('SET', key('history'), id .. ' ' .. base)
  return tonumber(base)
end

local base
local function next_fence(job)
  base = base or base_of_fences()
  return math.max(job.fence, base) + 1
end

local NO_TENANT = {last = -math.huge}
local origin = cjson.encode(args.origin)
local claims, found, free = {}, {}, args.slots

-- Claims a job. Returns its tenant's order afterwards; nil: the tenant has no further job in the
-- bucket.
local function take(job)
  local attempt, fence = job.attempts + 1, next_fence(job)
  if job.fence == 0 then redis.call('HSET', key('job', job.id), 'first_fence', fence) end
  local order = dequeue(job, job.cost * job.undone)
  if not is_compiled(job) then compiles(job) end
  redis.call('ZADD', key('leases'), seconds(now + args.lease_s), job.id)
  set_state(job, 'running', cjson.encode({pool = args.pool, attempt = attempt}),
    'attempts', attempt, 'fence', fence, 'pool', args.pool, 'started_at', seconds(now),
    'origin', origin)
  local checkpoint = args.origin.checkpoint
  if checkpoint ~= cjson.null and checkpoint ~= '' then
    redis.call('HSET', key('job', job.id), 'fingerprint', checkpoint)
  end
  claims[#claims + 1] = {job.id, fence}
  found[#found + 1] = whole_job(job.id)
  free = free - job.images
  return order
end

local function drop(turns, turn)
  for i, other in ipairs(turns) do
    if other == turn then return table.remove(turns, i) end
  end
end

-- Returns whether a job is claimed alone because its programs must be compiled.
local function compiles_first(job)
  return args.rides_wait and not is_compiled(job)
end

-- Claims further jobs of the same bucket while they fit.
local function take_riders(bucket)
  local turns = NO_TENANT
  while free > 0 do
    local turn = first_turn(turns)
    if not turn or turn.order > turns.last then
      turns = head_of_line(args.model, bucket, free)
      turn = first_turn(turns)
      if not turn then return end
    end
    local job = facts_of(first_of(of_model('lane', args.model, bucket, turn.tenant)))
    if job.images > free or job.deaths then return end
    if is_late(job.id, job) then
      turns = NO_TENANT
    elseif view:suits(job.id, job) and not compiles_first(job) then
      turn.order = take(job)
      if not turn.order then drop(turns, turn) end
    else
      return
    end
  end
end

local job = free > 0 and first() or nil
if job then
  take(job)
  if not (job.deaths or compiles_first(job)) then take_riders(job.bucket) end
  redis.call('SET', key('call', args.call), cjson.encode(claims), 'PX', args.answer_ms)
end
if view.newer then found[#found + 1] = 'newer' end
return found
