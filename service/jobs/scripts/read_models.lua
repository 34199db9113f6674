-- Reads the registered models and their workers with a fresh heartbeat.
-- Keys:  models  pools:model
-- Gives: {{spec, worker, 'ready' or 'warming', worker, …}, …}

local found = {}
local specs = redis.call('HGETALL', key('models'))
for i = 1, #specs, 2 do
  local model = {specs[i + 1]}
  local pools = redis.call('HGETALL', key('pools', specs[i]))
  for j = 1, #pools, 2 do
    local state, fresh_until = string.match(pools[j + 1], '^(%a+) (%S+)$')
    if tonumber(fresh_until) >= now then
      model[#model + 1] = pools[j]
      model[#model + 1] = state
    end
  end
  found[#found + 1] = model
end
return found
