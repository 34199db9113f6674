-- Renews the lease of a batch.
-- args:  batch (its id), holder (of the lease), lease_s
-- Keys:  openbatches  batch:batch
-- Gives: its state, or nil if the lease was lost or the batch has ended
-- Sent twice: returns the same.

local holder, state = unpack(redis.call('HMGET', key('batch', args.batch), 'holder', 'state'))
if holder ~= args.holder then return nil end
if not redis.call('ZSCORE', key('openbatches'), args.batch) then return nil end
redis.call('ZADD', key('openbatches'), seconds(now + args.lease_s), args.batch)
return state
