-- Fails a job: running → failed, or running → queued if it may be retried.
-- args:  id, fence, retry, max_attempts, spent (device-seconds of the claim: see `spend`; or
--        absent)
-- texts: error (JSON)
-- Keys:  common's
-- Gives: {the new state, time of the end if it ended}, or nil if the job is no longer held
-- Sent twice: returns the first answer.

local before = settled(args.id, 'fail')
if before then return {before, before == 'failed' and ended_at(args.id) or nil} end
if not is_held(args.id, args.fence) then return nil end
if args.spent then spend(key('job', args.id), args.fence, args.spent) end
if args.retry and tonumber((fields(args.id, 'attempts'))) < args.max_attempts then
  requeue(args.id)
  return {settle(args.id, 'fail', 'queued')}
end
fail_job(args.id, ARGV[2])
return {settle(args.id, 'fail', 'failed'), ended_at(args.id)}
