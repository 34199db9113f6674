-- What waits of a model, tenant by tenant, and what runs: all that an estimate of waits needs. Of
-- thousands of tenants it takes the server milliseconds: what can be put together by the reader
-- is given as it lies.
-- args:  model, looked_at (running jobs, and urgent ones, at the most)
-- Keys:  tenants:model  tags:model  backlog:model  weights:model  idle:model  virtual:model
--        latest:model  queue:model:tenant  leases  job:id
-- Gives: now, virtual time
--   {tenant, order, …} with queued jobs, by order; {jobs, …} of these in the same order
--   {tenant, tag, …}  {tenant, device-seconds, …}  {tenant, weight, …}
--   {tenant, tag, …} without queued jobs whose tag lies ahead
--   {id, latest start, tenant, device-seconds, …} of the first jobs with a deadline
--   {pool, device-seconds, run_s or '', step, steps, pictures, …} of running jobs
--   which share of all running jobs was looked at

local function all(name)
  return redis.call('HGETALL', key(name, args.model))
end

local tenants = redis.call('ZRANGE', key('tenants', args.model), 0, -1, 'WITHSCORES')
local queue, jobs = of_model('queue', args.model, ''), {}
for i = 1, #tenants, 2 do jobs[#jobs + 1] = redis.call('ZCARD', queue .. tenants[i]) end

local urgent = {}
local first = redis.call('ZRANGE', key('latest', args.model), 0, args.looked_at - 1, 'WITHSCORES')
for i = 1, #first, 2 do
  local tenant, cost = fields(first[i], 'tenant', 'cost')
  for _, text in ipairs({first[i], first[i + 1], tenant, cost or '0'}) do
    urgent[#urgent + 1] = text
  end
end

local running = {}
local leased = redis.call('ZRANGE', key('leases'), 0, args.looked_at - 1)
for _, id in ipairs(leased) do
  local model, pool, cost, run_s, step, steps, images =
    fields(id, 'model', 'pool', 'cost', 'run_s', 'step', 'steps', 'images')
  if model == args.model then
    for _, text in ipairs({pool, cost or '0', run_s or '', step or '0', steps or '0',
      images or '1'}) do
      running[#running + 1] = text
    end
  end
end
local seen = #leased > 0 and #leased / redis.call('ZCARD', key('leases')) or 1

return {seconds(now), seconds(virtual_time(args.model)), tenants, jobs, all('tags'),
  all('backlog'), all('weights'), redis.call('ZRANGE', key('idle', args.model), 0, -1,
  'WITHSCORES'), urgent, running, seconds(seen)}
