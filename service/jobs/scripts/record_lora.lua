-- Records a tenant's adapter whose file is stored.
-- args:  tenant, lora (its name), digest (of its file), bytes, preview (key of its image, or
--        empty), preview_bytes, max_loras (of the tenant), stored_bytes (a quota; or absent)
-- texts: record (JSON)
-- Keys:  loras:tenant  storedfiles:tenant  quota's
-- Gives: {'recorded', record}; {'taken', record} if another adapter has the name; {'full'} if the
--        tenant has as many as allowed; {'quota'} if it exceeds the quota of stored bytes
-- Sent twice: the second call finds its own record.

local there = redis.call('HGET', key('loras', args.tenant), args.lora)
if there and there ~= ARGV[2] then return {'taken', there} end
if not there then
  if redis.call('HLEN', key('loras', args.tenant)) >= args.max_loras then return {'full'} end
  local is_new = redis.call('HEXISTS', key('storedfiles', args.tenant), args.digest) == 0
  local bytes = is_new and args.bytes or 0
  if used_up(args.tenant, nil, nil, args.stored_bytes, bytes + args.preview_bytes) then
    return {'quota'}
  end
  redis.call('HSET', key('loras', args.tenant), args.lora, ARGV[2])
  if is_new then keep_file(args.tenant, args.digest, bytes) end
  if args.preview ~= '' then keep_file(args.tenant, args.preview, args.preview_bytes) end
end
return {'recorded', ARGV[2]}
