-- Removes the record of a tenant's adapter.
-- args:  tenant, lora (its name), digest (of its file), preview (key of its image, or empty)
-- texts: record (JSON; a different record with this name is kept)
-- Keys:  loras:tenant  quota's
-- Gives: {1 if another record of the tenant has the same file, else 0, bytes of its preview}
-- Sent twice: returns the same, with 0 bytes.

local preview_bytes = 0
if redis.call('HGET', key('loras', args.tenant), args.lora) == ARGV[2] then
  redis.call('HDEL', key('loras', args.tenant), args.lora)
  preview_bytes = keep_no_file(args.tenant, args.preview)
end
for _, record in ipairs(redis.call('HVALS', key('loras', args.tenant))) do
  if cjson.decode(record).digest == args.digest then return {1, preview_bytes} end
end
keep_no_file(args.tenant, args.digest)
return {0, preview_bytes}
