-- A page of a tenant's jobs, newest first. It costs what the page costs, whatever others have.
-- args:  tenant, states (those to list), after (id of a job; or absent), limit
-- Keys:  jobs:state:tenant  job:id
-- Gives: {job, …}, or nil where `after` is none of the tenant's jobs

local top = '+inf'
if args.after then
  local accepted, tenant = fields(args.after, 'accepted', 'tenant')
  if tenant ~= args.tenant then return nil end
  top = '(' .. accepted
end

local found = {}
for _, state in ipairs(args.states) do
  local page = redis.call('ZRANGE', key('jobs', state, args.tenant), top, '-inf', 'BYSCORE', 'REV',
    'LIMIT', 0, args.limit, 'WITHSCORES')
  for i = 1, #page, 2 do found[#found + 1] = {page[i], tonumber(page[i + 1])} end
end
table.sort(found, function(one, other) return one[2] > other[2] end)

local jobs = {}
for i = 1, math.min(#found, args.limit) do jobs[i] = whole_job(found[i][1]) end
return jobs
