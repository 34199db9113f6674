-- Returns a running job to the queue for an operator: running → queued, the attempt not counted.
-- The worker is notified by its next call for that claim.
-- args:  id, call (random id of this call), answer_ms (lifetime of the stored answer)
-- Keys:  call:call  common's
-- Gives: the job's state before the call; nil: there is no such job
-- Sent twice: returns the first answer.

local before = redis.call('GET', key('call', args.call))
if before then return before end
local state = fields(args.id, 'state')
if not state then return nil end
if state == 'running' then
  redis.call('HINCRBY', key('job', args.id), 'attempts', -1)
  requeue(args.id)
end
redis.call('SET', key('call', args.call), state, 'PX', args.answer_ms)
return state
