-- Releases the lease of a batch so that another front end can continue it at once.
-- args:  batch (its id), holder (of the lease)
-- Keys:  openbatches  batch:batch
-- Gives: nothing
-- Sent twice: the second call changes nothing.

if redis.call('HGET', key('batch', args.batch), 'holder') == args.holder then
  redis.call('ZADD', key('openbatches'), 'XX', seconds(now), args.batch)
end
