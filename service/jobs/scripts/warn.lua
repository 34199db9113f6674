-- Replaces the warnings about a running job's request.
-- args:  id, fence
-- texts: warnings (JSON)
-- Keys:  common's
-- Gives: 1, or 0 if the job is no longer held
-- Sent twice: stores the same.

if not is_held(args.id, args.fence) then return 0 end
redis.call('HSET', key('job', args.id), 'warnings', ARGV[2])
return 1
