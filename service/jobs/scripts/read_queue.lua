-- Reads a model's queue by tenant and its running jobs, for estimates of waits. With thousands of
-- tenants this takes the server milliseconds, so the reader combines the raw columns.
-- args:  model, looked_at (maximum number of running jobs, jobs with deadlines, and jobs with
--        snapshots)
-- Keys:  tenants:model  tags:model  backlog:model  weights:model  idle:model  virtual:model
--        latest:model  queue:model:tenant  kept:model  leases  job:id
-- Gives: now, virtual time
--   {tenant, order, …} with queued jobs, by order; {jobs, …} of these in the same order
--   {tenant, tag, …}  {tenant, device-seconds, …}  {tenant, weight, …}
--   {tenant, tag, …} without queued jobs whose tag is ahead of virtual time
--   {id, latest start, tenant, device-seconds, 1 or 0 (credited or guaranteed), …} of the first
--   jobs with a deadline
--   {tenant, device-seconds, …} of queued jobs that snapshots cover
--   {worker, device-seconds, run_s or '', step, steps, images, maximum run_s of a job that may
--   preempt it to meet a deadline, …} of running jobs
--   share of all running jobs that was read

local function all(name)
  return redis.call('HGETALL', key(name, args.model))
end

local tenants = redis.call('ZRANGE', key('tenants', args.model), 0, -1, 'WITHSCORES')
local queue, jobs = of_model('queue', args.model, ''), {}
for i = 1, #tenants, 2 do jobs[#jobs + 1] = redis.call('ZCARD', queue .. tenants[i]) end

local urgent = {}
local first = redis.call('ZRANGE', key('latest', args.model), 0, args.looked_at - 1, 'WITHSCORES')
for i = 1, #first, 2 do
  local job = facts_of(first[i])
  local left = seconds(job.cost * job.undone)
  local is_kept = (job.credited or job.guaranteed) and '1' or '0'
  for _, text in ipairs({first[i], first[i + 1], job.tenant, left, is_kept}) do
    urgent[#urgent + 1] = text
  end
end

local kept = {}
for _, id in ipairs(redis.call('SRANDMEMBER', key('kept', args.model), args.looked_at)) do
  if fields(id, 'state') == 'queued' then
    local job = facts_of(id)
    kept[#kept + 1] = job.tenant
    kept[#kept + 1] = seconds(job.cost * (1 - job.undone))
  end
end

local function yields_to(yields)
  local until_s, takes_s = string.match(yields or '', '^(%S+) (%S+)$')
  return until_s and tonumber(until_s) > now and takes_s or '0'
end

local running = {}
local leased = redis.call('ZRANGE', key('leases'), 0, args.looked_at - 1)
for _, id in ipairs(leased) do
  local model, pool, cost, run_s, step, steps, images, yields, compile_s = fields(id,
    'model', 'pool', 'cost', 'run_s', 'step', 'steps', 'images', 'yields', 'compile_s')
  if model == args.model then
    local lasts_s = seconds(math.max(0, (tonumber(cost) or 0) - (tonumber(compile_s) or 0)))
    for _, text in ipairs({pool, lasts_s, run_s or '', step or '0', steps or '0',
      images or '1', yields_to(yields)}) do
      running[#running + 1] = text
    end
  end
end
local seen = #leased > 0 and #leased / redis.call('ZCARD', key('leases')) or 1

return {seconds(now), seconds(virtual_time(args.model)), tenants, jobs, all('tags'),
  all('backlog'), all('weights'), redis.call('ZRANGE', key('idle', args.model), 0, -1,
  'WITHSCORES'), urgent, kept, running, seconds(seen)}
