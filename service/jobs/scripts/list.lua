-- A page of jobs, newest first.
-- args:  state (or absent), after (id of a job, or absent), limit
-- Keys:  jobs  jobs:state  job:id
-- Gives: {job, …}, or nil where `after` is unknown

local index = args.state and key('jobs', args.state) or key('jobs')
local top = '+inf'
if args.after then
  local accepted = fields(args.after, 'accepted')
  if not accepted then return nil end
  top = '(' .. accepted
end
local page = redis.call('ZRANGE', index, top, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, args.limit)
for i, id in ipairs(page) do page[i] = whole_job(id) end
return page
