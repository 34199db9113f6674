-- A page of a tenant's jobs, newest first. It costs what the page costs, whatever others have. By
-- model or metadata, which no index has, it costs what `looked_at` jobs do, and may have fewer.
-- args:  tenant, states (those to list), after (id of a job; or absent), limit,
--        looked_at (jobs that are looked at for the next three), model (by its name in the request;
--        or absent), metadata_key (or absent), metadata_value (of that key; or absent),
--        created_from (microseconds; or absent), created_before (likewise; or absent)
-- Keys:  jobs:state:tenant  job:id
-- Gives: {id of the job to go on after or '', job, …}, or nil where `after` is none of the tenant's

local top = args.created_before and '(' .. whole(args.created_before) or '+inf'
local bottom = args.created_from and whole(args.created_from) or '-inf'
if args.after then
  local accepted, tenant = fields(args.after, 'accepted', 'tenant')
  if tenant ~= args.tenant then return nil end
  if not (args.created_before and args.created_before < tonumber(accepted)) then
    top = '(' .. accepted
  end
end

local function is_of_model(id)
  local model, served_as = fields(id, 'model', 'served_as')
  return (served_as or model) == args.model
end

local function has_metadata(id)
  local value = cjson.decode((fields(id, 'metadata')) or '{}')[args.metadata_key]
  return value and (not args.metadata_value or value == args.metadata_value)
end

local function fits(id)
  return (not args.model or is_of_model(id)) and (not args.metadata_key or has_metadata(id))
end

local most = (args.model or args.metadata_key) and args.looked_at or args.limit
local found = {}
for _, state in ipairs(args.states) do
  local page = redis.call('ZRANGE', key('jobs', state, args.tenant), top, bottom, 'BYSCORE', 'REV',
    'LIMIT', 0, most + 1, 'WITHSCORES')
  for i = 1, #page, 2 do found[#found + 1] = {page[i], tonumber(page[i + 1])} end
end
table.sort(found, function(one, other) return one[2] > other[2] end)

local answer = {''}
for i = 1, math.min(#found, most) do
  local id = found[i][1]
  if fits(id) then answer[#answer + 1] = whole_job(id) end
  if #answer > args.limit or i == most then
    if found[i + 1] then answer[1] = id end
    break
  end
end
return answer
