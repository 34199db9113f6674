-- Deletes a job: ended → nothing; before that, queued or running → canceled.
-- args:  call (random id of this call), id, answer_ms (lifetime of the stored answer)
-- Keys:  call:call  left:id  forget's and common's
-- Gives: the job's last hash, or nil; its `ended_by` is the call that canceled it
-- Sent twice: returns the first answer.

local before = redis.call('GET', key('call', args.call))
if before then return before end

local state = fields(args.id, 'state')
if not state then return nil end
if not is_ended(state) then
  redis.call('HSET', key('job', args.id), 'ended_by', args.call)
  end_job(args.id, 'canceled', '{}')
  if state == 'running' then redis.call('PUBLISH', key('stopped'), args.id) end
end
local job = whole_job(args.id)
redis.call('SET', key('call', args.call), job, 'PX', args.answer_ms)
-- Compilations that it caused may continue, and be reported later.
if not is_done(state) and fields(args.id, 'fence') then
  local names = {'tenant', 'model', 'weight', 'state', 'started_at', 'promised', 'spent',
    'tenant_class', 'key_id', 'served_as', 'origin', 'pool', 'billed', 'fingerprint'}
  for i, value in ipairs(redis.call('HMGET', key('job', args.id), unpack(names))) do
    if value then redis.call('HSET', key('left', args.id), names[i], value) end
  end
  redis.call('EXPIRE', key('left', args.id), HOUR_S)
end
forget(args.id)
redis.call('PUBLISH', key('wake'), args.id)
return job
