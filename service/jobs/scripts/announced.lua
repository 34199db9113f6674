-- Acquires due webhook messages from all tenants in turn, and postpones them until the lease ends.
-- args:  call (random id of this call), answer_ms (lifetime of the stored answer), lease_s, most
--        (maximum number of messages), each (maximum number per tenant), busy (tenant: number of
--        messages that this front end is sending)
-- Keys:  call:call  webhooks  webhooks:tenant  job:id
-- Gives: {{tenant, id, failed attempts}, …}
-- Sent twice: returns the first answer.

local before = redis.call('GET', key('call', args.call))
if before then return cjson.decode(before) end

local taken, tenants, room = {}, redis.call('ZRANGE', key('webhooks'), 0, -1), {}
for _, tenant in ipairs(tenants) do room[tenant] = args.each - (args.busy[tenant] or 0) end

local function lend(tenant)
  local due = key('webhooks', tenant)
  local id = redis.call('ZRANGE', due, '-inf', seconds(now), 'BYSCORE', 'LIMIT', 0, 1)[1]
  if not id then return false end
  redis.call('ZADD', due, seconds(now + args.lease_s), id)
  room[tenant] = room[tenant] - 1
  taken[#taken + 1] = {tenant, id, tonumber((fields(id, 'webhook'))) or 0}
  -- Move the tenant after all others.
  redis.call('ZADD', key('webhooks'), seconds(now + #taken / 1000000), tenant)
  return true
end

repeat
  local some = false
  for _, tenant in ipairs(tenants) do
    if #taken < args.most and room[tenant] > 0 and lend(tenant) then some = true end
  end
until not some
if #taken > 0 then
  redis.call('SET', key('call', args.call), cjson.encode(taken), 'PX', args.answer_ms)
end
return taken
