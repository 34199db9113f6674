-- Requeues a job of a worker that drains, or a preempted job: running → queued.
-- The attempt is not counted.
-- args:  id, fence, preempted (true: it yields to a more urgent job), spent (device-seconds of the
--        claim: see `spend`; or absent)
-- Keys:  common's
-- Gives: 1, or 0 if the job is no longer held
-- Sent twice: returns the first answer.

if settled(args.id, 'release') then return 1 end
if not is_held(args.id, args.fence) then return 0 end
if args.spent then spend(key('job', args.id), args.fence, args.spent) end
redis.call('HINCRBY', key('job', args.id), 'attempts', -1)
if args.preempted then
  -- Its place advances only while it waits, so move it back by the running time.
  local place, started = fields(args.id, 'place', 'started_at')
  redis.call('HSET', key('job', args.id), 'place', whole(place + (now - started) * 1000000))
end
requeue(args.id)
settle(args.id, 'release', 'queued')
return 1
