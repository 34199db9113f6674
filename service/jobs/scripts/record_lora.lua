-- A tenant's adapter, whose file is stored.
-- args:  tenant, lora (its name), max_loras (of the tenant)
-- texts: record (JSON)
-- Keys:  loras:tenant
-- Gives: {'recorded', record}; {'taken', record} where another adapter has the name; {'full'} where
--        the tenant has as many as it may have
-- Sent twice: the second time finds its own record.

local there = redis.call('HGET', key('loras', args.tenant), args.lora)
if there and there ~= ARGV[2] then return {'taken', there} end
if not there then
  if redis.call('HLEN', key('loras', args.tenant)) >= args.max_loras then return {'full'} end
  redis.call('HSET', key('loras', args.tenant), args.lora, ARGV[2])
end
return {'recorded', ARGV[2]}
