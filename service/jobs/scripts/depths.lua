-- Returns the length, age and cost of each registered model's queue.
-- args:  looked_at (maximum number of jobs with snapshots that are read)
-- Keys:  models  queued:model  waiting:model  backlog:model  kept:model  leases  job:id
-- Gives: {{model, queued, running, seconds since the oldest queued job was queued, device-seconds
--        of queued jobs and of the rest of running ones}, …}

-- Returns the predicted device-seconds of a job, and the share that is done.
local function work_of(id, done)
  local cost, step, steps = fields(id, 'cost', done, 'steps')
  local share = (tonumber(step) or 0) / math.max(1, tonumber(steps) or 1)
  return tonumber(cost) or 0, math.min(1, share)
end

local running, left = {}, {}
for _, id in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
  local model = fields(id, 'model')
  if model then
    local cost, done = work_of(id, 'step')
    running[model] = (running[model] or 0) + 1
    left[model] = (left[model] or 0) + cost * (1 - done)
  end
end

local function queued_work(model)
  local sum = 0
  for _, cost in ipairs(redis.call('HVALS', key('backlog', model))) do sum = sum + cost end
  for _, id in ipairs(redis.call('SRANDMEMBER', key('kept', model), args.looked_at)) do
    if fields(id, 'state') == 'queued' then
      local cost, done = work_of(id, 'kept')
      sum = sum - cost * done
    end
  end
  return math.max(0, sum)
end

local function oldest(model)
  local first = redis.call('ZRANGE', key('waiting', model), 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, now - first[2]) or 0
end

local found = {}
for i, model in ipairs(redis.call('HKEYS', key('models'))) do
  local queued = tonumber(redis.call('GET', key('queued', model)) or 0)
  found[i] = {model, queued, running[model] or 0, seconds(oldest(model)),
    seconds(queued_work(model) + (left[model] or 0))}
end
return found
