-- The job of a batch's line, or how the line has ended: it ends once.
-- args:  batch (its id), holder (of the lease), line (its number), outcome (a job's id; completed,
--        failed)
-- Keys:  batch:batch  batchlines:batch
-- Gives: 1, or 0 where another one drives the batch
-- Sent twice: the second time changes nothing.

if redis.call('HGET', key('batch', args.batch), 'holder') ~= args.holder then return 0 end
local function is_end(outcome)
  return outcome == 'completed' or outcome == 'failed'
end
local before = redis.call('HGET', key('batchlines', args.batch), whole(args.line))
if before and is_end(before) then return 1 end
redis.call('HSET', key('batchlines', args.batch), whole(args.line), args.outcome)
if is_end(args.outcome) then redis.call('HINCRBY', key('batch', args.batch), args.outcome, 1) end
return 1
