-- Removes a job: ended → nothing; before that, queued or running → canceled.
-- args:  call (of this request, random), id, answer_ms (how long it may be sent again)
-- Keys:  call:call  left:id  forget's and common's
-- Gives: the job as it was last, or nil; `ended_by` of its hash is the call that stopped it
-- Sent twice: gives the first answer.

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
-- What it made its pool compile may go on, and be told.
if not is_done(state) and fields(args.id, 'fence') then
  local names = {'tenant', 'model', 'weight', 'state', 'started_at', 'promised', 'spent',
    'tenant_class', 'key_id', 'served_as', 'origin', 'pool', 'billed'}
  for i, value in ipairs(redis.call('HMGET', key('job', args.id), unpack(names))) do
    if value then redis.call('HSET', key('left', args.id), names[i], value) end
  end
  redis.call('EXPIRE', key('left', args.id), HOUR_S)
end
forget(args.id)
redis.call('PUBLISH', key('wake'), args.id)
return job
