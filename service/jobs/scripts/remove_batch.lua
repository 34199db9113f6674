-- Removes a tenant's batch that has ended.
-- args:  batch (its id), tenant
-- Keys:  batch:batch  openbatches  endedbatches  batches:tenant
-- Gives: 'removed', 'none' if the tenant has no such batch, or 'open'
-- Sent twice: the second call returns 'none'.

if redis.call('HGET', key('batch', args.batch), 'tenant') ~= args.tenant then return 'none' end
if redis.call('ZSCORE', key('openbatches'), args.batch) then return 'open' end
redis.call('DEL', key('batch', args.batch))
redis.call('ZREM', key('endedbatches'), args.batch)
redis.call('ZREM', key('batches', args.tenant), args.batch)
return 'removed'
