-- Removes a tenant's file, unless an unended batch uses it.
-- args:  file (its id), tenant
-- Keys:  file:file  files:tenant  files  trash  quota's
-- Gives: 'removed', 'none' if the tenant has no such file, or 'used'
-- Sent twice: the second call returns 'none'.

local owner, uses = unpack(redis.call('HMGET', key('file', args.file), 'tenant', 'uses'))
if owner ~= args.tenant then return 'none' end
if tonumber(uses) > 0 then return 'used' end
redis.call('DEL', key('file', args.file))
redis.call('ZREM', key('files', args.tenant), args.file)
redis.call('ZREM', key('files'), args.file)
keep_no_file(args.tenant, args.file)
redis.call('SADD', key('trash'), 'inputs/' .. args.file .. '/')
return 'removed'
