-- Cancels a job for its client: queued or running → canceled.
-- args:  call (random id of this call), id
-- Keys:  common's
-- Gives: the job, or nil; `ended_by` of its hash is the call that canceled it
-- Sent twice: an ended job stays unchanged.

local state = fields(args.id, 'state')
if state and not is_ended(state) then
  redis.call('HSET', key('job', args.id), 'ended_by', args.call)
  end_job(args.id, 'canceled', '{}')
  if state == 'running' then redis.call('PUBLISH', key('stopped'), args.id) end
end
return whole_job(args.id)
