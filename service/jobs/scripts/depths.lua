-- How many jobs have not ended.
-- Keys:  models  queued:model  leases  job:id
-- Gives: {{model, queued, running}, …}, the registered models

local running = {}
for _, id in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
  local model = fields(id, 'model')
  if model then running[model] = (running[model] or 0) + 1 end
end

local found = {}
for i, model in ipairs(redis.call('HKEYS', key('models'))) do
  found[i] = {model, tonumber(redis.call('GET', key('queued', model)) or 0), running[model] or 0}
end
return found
