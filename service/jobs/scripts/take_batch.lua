-- Acquires the lease of the batch that has waited longest for a driver.
-- args:  holder (random name of its driver), lease_s
-- Keys:  openbatches  batch:batch
-- Gives: its id, or nil
-- Sent twice: acquires two; the first has no driver until its lease ends.

local found = redis.call('ZRANGE', key('openbatches'), '-inf', seconds(now), 'BYSCORE', 'LIMIT', 0, 1)
if not found[1] then return nil end
redis.call('ZADD', key('openbatches'), seconds(now + args.lease_s), found[1])
redis.call('HSET', key('batch', found[1]), 'holder', args.holder)
return found[1]
