-- A tenant's adapter is removed.
-- args:  tenant, lora (its name), digest (of its file)
-- texts: record (JSON: another one of that name stays)
-- Keys:  loras:tenant
-- Gives: 1 where another record of the tenant has the same file, else 0
-- Sent twice: gives the same.

if redis.call('HGET', key('loras', args.tenant), args.lora) == ARGV[2] then
  redis.call('HDEL', key('loras', args.tenant), args.lora)
end
for _, record in ipairs(redis.call('HVALS', key('loras', args.tenant))) do
  if cjson.decode(record).digest == args.digest then return 1 end
end
return 0
