-- Moves a batch to its next state for its driver: validating → in_progress → finalizing →
-- completed, or to failed, expired, cancelled. From cancelling, only an end state is allowed, and
-- from finalizing no way back.
-- args:  batch (its id), holder (of the lease), state (the next one), ends (whether it is an end
--        state)
-- texts: fields (name, value, …)
-- Keys:  batch:batch  batchlines:batch  openbatches  openbatches:tenant  endedbatches  file:file
--        trash  quota's
-- Gives: its state now, or nil if the lease was lost
-- Sent twice: returns the same.

local batch = key('batch', args.batch)
local holder, state, tenant, file =
  unpack(redis.call('HMGET', batch, 'holder', 'state', 'tenant', 'input_file_id'))
if holder ~= args.holder then return nil end
if state == args.state then return state end
local is_leaving = state == 'cancelling' or state == 'finalizing'
if is_leaving and not args.ends then return state end
redis.call('HSET', batch, 'state', args.state, args.state .. '_at', seconds(now), unpack(ARGV, 2))
if args.ends then
  redis.call('ZREM', key('openbatches'), args.batch)
  redis.call('SREM', key('openbatches', tenant), args.batch)
  redis.call('ZADD', key('endedbatches'), seconds(now), args.batch)
  redis.call('HINCRBY', key('file', file), 'uses', -1)
  redis.call('DEL', key('batchlines', args.batch))
  keep_no_file(tenant, 'batches/' .. args.batch)
  redis.call('SADD', key('trash'), 'batches/' .. args.batch .. '/')
end
return args.state
