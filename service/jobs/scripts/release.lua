-- A pool gives a job back unharmed: running → queued, the attempt not counted.
-- args:  id, fence, max_events
-- Keys:  common's
-- Gives: 1, or 0 where the job is no longer held
-- Sent twice: gives the first answer.

if settled(args.id, 'release') then return 1 end
if not is_held(args.id, args.fence) then return 0 end
redis.call('HINCRBY', key('job', args.id), 'attempts', -1)
requeue(args.id)
settle(args.id, 'release', 'queued')
return 1
