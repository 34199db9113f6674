-- The client stops a job: queued or running → canceled.
-- args:  call (of this request, random), id
-- Keys:  common's
-- Gives: the job, or nil; `ended_by` of its hash is the call that stopped it
-- Sent twice: an ended job stays as it is.

local state = fields(args.id, 'state')
if state and not is_ended(state) then
  redis.call('HSET', key('job', args.id), 'ended_by', args.call)
  end_job(args.id, 'canceled', '{}')
  if state == 'running' then redis.call('PUBLISH', key('stopped'), args.id) end
end
return whole_job(args.id)
