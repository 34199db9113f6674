-- How many jobs have not ended.
-- Keys:  models  queue:model  leases  job:id
-- Gives: {{model, queued, running}, …}, the registered models

local running = {}
for _, id in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
  local model = fields(id, 'model')
  if model then running[model] = (running[model] or 0) + 1 end
end

local found = {}
for i, model in ipairs(redis.call('HKEYS', key('models'))) do
  found[i] = {model, redis.call('ZCARD', key('queue', model)), running[model] or 0}
end
return found
