-- A message was not taken, or could not be sent now: it comes again.
-- args:  id, tenant, in_s (until then), failed (attempts so far)
-- Keys:  webhooks:tenant  job:id
-- Sent twice: writes the same, a little later.

if redis.call('ZSCORE', key('webhooks', args.tenant), args.id) then
  redis.call('ZADD', key('webhooks', args.tenant), seconds(now + args.in_s), args.id)
  redis.call('HSET', key('job', args.id), 'webhook', args.failed)
end
