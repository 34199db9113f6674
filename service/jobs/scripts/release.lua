-- A pool gives a job back unharmed, or puts it aside: running → queued, the attempt not counted.
-- args:  id, fence, preempted (true: for a job that should go before it),
--        spent (what the claim has taken: see `spend`; or absent)
-- Keys:  common's
-- Gives: 1, or 0 where the job is no longer held
-- Sent twice: gives the first answer.

if settled(args.id, 'release') then return 1 end
if not is_held(args.id, args.fence) then return 0 end
if args.spent then spend(key('job', args.id), args.fence, args.spent) end
redis.call('HINCRBY', key('job', args.id), 'attempts', -1)
if args.preempted then
  -- Its place ages while it waits, which it has not done while it ran.
  local place, started = fields(args.id, 'place', 'started_at')
  redis.call('HSET', key('job', args.id), 'place', whole(place + (now - started) * 1000000))
end
requeue(args.id)
settle(args.id, 'release', 'queued')
return 1
