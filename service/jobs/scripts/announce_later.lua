-- Schedules the next attempt of a webhook message that was not delivered.
-- args:  id, tenant, in_s (until the next attempt), failed (number of failed attempts)
-- Keys:  webhooks:tenant  job:id
-- Sent twice: writes the same with a slightly later time.

if redis.call('ZSCORE', key('webhooks', args.tenant), args.id) then
  redis.call('ZADD', key('webhooks', args.tenant), seconds(now + args.in_s), args.id)
  redis.call('HSET', key('job', args.id), 'webhook', args.failed)
end
