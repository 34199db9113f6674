-- Returns a page of a tenant's jobs, newest first. Its cost depends only on the page, not on other
-- tenants. Filters by model or metadata have no index: they scan `looked_at` jobs, and the page
-- may have fewer.
-- args:  tenant, states (those to list), after (id of a job; or absent), limit, looked_at (maximum
--        number of jobs scanned for the next three filters), model (by its name in the request; or
--        absent), metadata_key (or absent), metadata_value (of that key; or absent), created_from
--        (microseconds; or absent), created_before (likewise; or absent)
-- Keys:  jobs:state:tenant  job:id
-- Gives: {id of the job after which the next page starts or '', job, …}, or nil if the tenant has
--        no job `after`

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
