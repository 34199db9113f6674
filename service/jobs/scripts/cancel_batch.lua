-- Requests the cancellation of a client's batch: validating or in_progress → cancelling.
-- args:  batch (its id), tenant
-- Keys:  batch:batch
-- Gives: its state now, or nil if the tenant has no such batch
-- Sent twice: returns the same.

local owner, state = unpack(redis.call('HMGET', key('batch', args.batch), 'tenant', 'state'))
if owner ~= args.tenant then return nil end
if state ~= 'validating' and state ~= 'in_progress' then return state end
redis.call('HSET', key('batch', args.batch), 'state', 'cancelling', 'cancelling_at', seconds(now))
return 'cancelling'
