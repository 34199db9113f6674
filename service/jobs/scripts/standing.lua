-- How much of its quotas a tenant has taken.
-- args:  tenant, device_seconds_per_hour (or absent)
-- Keys:  jobs:queued:tenant  promised:tenant  used:tenant
-- Gives: {queued jobs, device-seconds of this hour, seconds until some of them stop to count}

local queued = redis.call('ZCARD', key('jobs', 'queued', args.tenant))
local sum, _, next_s = spent(args.tenant, args.device_seconds_per_hour or math.huge)
return {queued, seconds(sum), seconds(next_s)}
