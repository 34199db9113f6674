-- How much of its quotas a tenant has taken.
-- args:  tenant, device_seconds_per_hour (or absent), retention_s
-- Keys:  jobs:queued:tenant  promised:tenant  used:tenant  stored:tenant  jobs:state:tenant  job:id
-- Gives: {queued jobs, device-seconds of this hour, seconds until some of them stop to count, or
--        where nothing is left until something is, bytes in the store, seconds until some leave}

return standing(args.tenant, args.device_seconds_per_hour, args.retention_s)
