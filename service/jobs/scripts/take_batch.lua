-- Acquires the lease of the batch that has waited longest for a driver.
-- args:  holder (random name of its driver), lease_s
-- Keys:  openbatches  batch:batch
-- Gives: its id, or nil
-- Sent twice: acquires two; the first has no driver until its lease ends.

local batches = key('openbatches')
local id = redis.call('ZRANGE', batches, '-inf', seconds(now), 'BYSCORE', 'LIMIT', 0, 1)[1]
if not id then return nil end
redis.call('ZADD', batches, seconds(now + args.lease_s), id)
redis.call('HSET', key('batch', id), 'holder', args.holder)
return id
