-- Hands jobs to a pool: queued → running. The head of the model's queue, then those of its bucket
-- behind it, in order, while their pictures fit; a head that needs more than that goes alone.
-- args:  call (of this request, random), answer_ms (how long it may be sent again), pool, model,
--        slots, version, lease_s, max_events
-- Keys:  call:call  and common's
-- Gives: {job, …}, and 'newer' at the end where a job of a newer wire version came up
-- Sent twice: gives what it took before and what is still held.

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

local function take(id)
  local attempt = redis.call('HINCRBY', key('job', id), 'attempts', 1)
  local fence = redis.call('HINCRBY', key('job', id), 'fence', 1)
  redis.call('HSET', key('job', id), 'pool', args.pool, 'started_at', seconds(now))
  redis.call('ZADD', key('leases'), seconds(now + args.lease_s), id)
  dequeue(id)
  set_state(id, 'running', cjson.encode({pool = args.pool, attempt = attempt}))
  return {id, fence}
end

local claims, free, newer = {}, args.slots, false
local line = key('queue', args.model)
while free > 0 and not newer do
  local id = redis.call('ZRANGE', line, 0, 0)[1]
  if not id then break end
  if not expire(id) then
    local bucket, images, version = fields(id, 'bucket', 'images', 'version')
    if #claims > 0 and tonumber(images) > free then break end
    newer = tonumber(version) > args.version
    if not newer then
      claims[#claims + 1] = take(id)
      free = free - images
      line = bucket_key(args.model, bucket)
    end
  end
end

if #claims > 0 then
  redis.call('SET', key('call', args.call), cjson.encode(claims), 'PX', args.answer_ms)
end
local found = jobs(claims)
if newer then found[#found + 1] = 'newer' end
return found
