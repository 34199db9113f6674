-- Records a new batch, which then waits for a front end to drive it.
-- args:  batch (its id), tenant, file (id of its requests), window_s (after which unfinished lines
--        are given up), max_open (maximum number of the tenant's unended batches), max_files (of
--        the tenant)
-- texts: fields (name, value, …)
-- Keys:  batch:batch  batches:tenant  openbatches:tenant  openbatches  file:file  files:tenant
-- Gives: 'recorded', 'full', 'no_room' if its results would be too many files, or 'no_file' if the
--        tenant has no file with this id and purpose
-- Sent twice: returns the same.

if redis.call('EXISTS', key('batch', args.batch)) == 1 then return 'recorded' end
local owner, purpose = unpack(redis.call('HMGET', key('file', args.file), 'tenant', 'purpose'))
if owner ~= args.tenant or purpose ~= 'batch' then return 'no_file' end
if redis.call('SCARD', key('openbatches', args.tenant)) >= args.max_open then return 'full' end
if files_of(args.tenant) + RESULT_FILES > args.max_files then return 'no_room' end
redis.call('HINCRBY', key('file', args.file), 'uses', 1)
redis.call('HSET', key('batch', args.batch), 'state', 'validating', 'created_at', seconds(now),
  'expires_at', seconds(now + args.window_s), unpack(ARGV, 2))
redis.call('ZADD', key('batches', args.tenant), now_us, args.batch)
redis.call('SADD', key('openbatches', args.tenant), args.batch)
redis.call('ZADD', key('openbatches'), seconds(now), args.batch)
return 'recorded'
