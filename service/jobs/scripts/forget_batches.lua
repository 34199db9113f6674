-- Removes ended batches past their retention, and expired files that no batch uses.
-- args:  retention_s, most (of each kind per call)
-- Keys:  endedbatches  batch:batch  batches:tenant  files  file:file  files:tenant  trash  quota's
-- Gives: nothing
-- Sent twice: the second call removes later ones.

local function due(set, until_s)
  return redis.call('ZRANGE', key(set), '-inf', seconds(until_s), 'BYSCORE', 'LIMIT', 0, args.most)
end

for _, id in ipairs(due('endedbatches', now - args.retention_s)) do
  local tenant = redis.call('HGET', key('batch', id), 'tenant')
  redis.call('DEL', key('batch', id))
  redis.call('ZREM', key('endedbatches'), id)
  redis.call('ZREM', key('batches', tenant), id)
end
for _, id in ipairs(due('files', now)) do
  local tenant, uses = unpack(redis.call('HMGET', key('file', id), 'tenant', 'uses'))
  if tonumber(uses) > 0 then
    redis.call('ZADD', key('files'), seconds(now + args.retention_s), id)
  else
    redis.call('DEL', key('file', id))
    redis.call('ZREM', key('files'), id)
    redis.call('ZREM', key('files', tenant), id)
    keep_no_file(tenant, id)
    redis.call('SADD', key('trash'), 'inputs/' .. id .. '/')
  end
end
