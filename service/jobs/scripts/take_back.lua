-- An operator takes a job from its pool, unharmed: running → queued, the attempt not counted. The
-- pool hears of it with its next call about that claim.
-- args:  id, call (of this request, random), answer_ms (how long it may be sent again)
-- Keys:  call:call  common's
-- Gives: the state that the job was in; nil: there is no such job
-- Sent twice: gives the first answer.

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
