-- Records the job of a batch's line, or its outcome, which is recorded once.
-- args:  batch (its id), holder (of the lease), line (its number), outcome (a job's id; completed,
--        failed), bytes (of its stored result)
-- Keys:  batch:batch  batchlines:batch  quota's
-- Gives: 1, or 0 if the lease was lost
-- Sent twice: the second call changes nothing.

local holder, tenant = unpack(redis.call('HMGET', key('batch', args.batch), 'holder', 'tenant'))
if holder ~= args.holder then return 0 end
local function is_end(outcome)
  return outcome == 'completed' or outcome == 'failed'
end
local before = redis.call('HGET', key('batchlines', args.batch), whole(args.line))
if before and is_end(before) then return 1 end
redis.call('HSET', key('batchlines', args.batch), whole(args.line), args.outcome)
if is_end(args.outcome) then
  redis.call('HINCRBY', key('batch', args.batch), args.outcome, 1)
  keep_file(tenant, 'batches/' .. args.batch, args.bytes)
end
return 1
