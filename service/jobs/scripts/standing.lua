-- How much of its quotas a tenant has taken.
-- args:  tenant, device_seconds_per_hour (or absent)
-- Keys:  jobs:queued:tenant  promised:tenant  used:tenant
-- Gives: {queued jobs, device-seconds of this hour, seconds until some of them stop to count, or
--        where nothing is left until something is}

return standing(args.tenant, args.device_seconds_per_hour)
