-- A tenant's file, whose bytes are stored.
-- args:  file (its id), tenant, purpose, expires_at, max_files (of the tenant; or absent)
-- texts: record (JSON)
-- Keys:  file:file  files:tenant  files  deposits
-- Gives: 1, or 0 where the tenant has as many as it may have
-- Sent twice: gives the same.

if redis.call('EXISTS', key('file', args.file)) == 0 then
  if args.max_files and redis.call('ZCARD', key('files', args.tenant)) >= args.max_files then
    return 0
  end
  redis.call('HSET', key('file', args.file), 'tenant', args.tenant, 'purpose', args.purpose,
    'record', ARGV[2], 'uses', 0)
  redis.call('ZADD', key('files', args.tenant), now_us, args.file)
  redis.call('ZADD', key('files'), seconds(args.expires_at), args.file)
end
redis.call('ZREM', key('deposits'), args.file)
return 1
