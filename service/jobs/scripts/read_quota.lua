-- Reads a tenant's usage of its quotas.
-- args:  tenant, device_seconds_per_hour (or absent), retention_s
-- Keys:  jobs:queued:tenant  promised:tenant  used:tenant  stored:tenant  jobs:state:tenant
--        job:id
-- Gives: {queued jobs, device-seconds of this hour, seconds until some of them no longer count or,
--        if used up, until some are available, bytes in the store, seconds until some are removed}

return standing(args.tenant, args.device_seconds_per_hour, args.retention_s)
