-- Reads the measured costs of a model, and its ready workers.
-- args:  model
-- Keys:  costs:model  pools:model  layouts:model
-- Gives: {{field, row, …}, {worker, its announced facts, …}, now}

local known = redis.call('HGETALL', key('pools', args.model))
local told = redis.call('HGETALL', key('layouts', args.model))
local facts = {}
for i = 1, #told, 2 do facts[told[i]] = told[i + 1] end
local pools = {}
for i = 1, #known, 2 do
  local fresh_until = string.match(known[i + 1], '^ready (%S+)$')
  if fresh_until and facts[known[i]] and tonumber(fresh_until) >= now then
    pools[#pools + 1] = known[i]
    pools[#pools + 1] = facts[known[i]]
  end
end
return {redis.call('HGETALL', key('costs', args.model)), pools, seconds(now)}
