-- What pools have measured of a model, and which of them are ready.
-- args:  model
-- Keys:  costs:model  pools:model  layouts:model
-- Gives: {{field, row, …}, {pool, what it says of itself, …}}

local known = redis.call('HGETALL', key('pools', args.model))
local pools = {}
for i = 1, #known, 2 do
  local state, fresh_until = string.match(known[i + 1], '^(%a+) (%S+)$')
  local facts = redis.call('HGET', key('layouts', args.model), known[i])
  if state == 'ready' and tonumber(fresh_until) >= now and facts then
    pools[#pools + 1] = known[i]
    pools[#pools + 1] = facts
  end
end
return {redis.call('HGETALL', key('costs', args.model)), pools}
