-- Records a tenant's file whose bytes are stored.
-- args:  file (its id), tenant, purpose, expires_at, bytes, max_files (of the tenant; or absent),
--        stored_bytes (a quota; or absent)
-- texts: record (JSON)
-- Keys:  file:file  files:tenant  files  openbatches:tenant  deposits  quota's
-- Gives: 'recorded', 'full' if the tenant has as many files as allowed, including its open
--        batches' results, or 'quota' if the file exceeds the quota of stored bytes
-- Sent twice: returns the same.

if redis.call('EXISTS', key('file', args.file)) == 0 then
  if args.max_files and files_of(args.tenant) >= args.max_files then return 'full' end
  if used_up(args.tenant, nil, nil, args.stored_bytes, args.bytes) then return 'quota' end
  redis.call('HSET', key('file', args.file), 'tenant', args.tenant, 'purpose', args.purpose,
    'record', ARGV[2], 'uses', 0)
  redis.call('ZADD', key('files', args.tenant), now_us, args.file)
  redis.call('ZADD', key('files'), seconds(args.expires_at), args.file)
  keep_file(args.tenant, args.file, args.bytes)
end
redis.call('ZREM', key('deposits'), args.file)
return 'recorded'
