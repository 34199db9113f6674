-- Stores costs that a worker has measured.
-- args:  model, rows ({{field, row}, …}), max_rows (the oldest are removed)
-- Keys:  costs:model
-- Sent twice: writes the same with a slightly later time.

local costs = key('costs', args.model)
for _, pair in ipairs(args.rows) do
  local row = pair[2]
  row.at = now
  redis.call('HSET', costs, pair[1], cjson.encode(row))
end

local over = redis.call('HLEN', costs) - args.max_rows
if over > 0 then
  local flat, ages = redis.call('HGETALL', costs), {}
  for i = 1, #flat, 2 do ages[#ages + 1] = {flat[i], cjson.decode(flat[i + 1]).at} end
  table.sort(ages, function(a, b) return a[2] < b[2] end)
  for i = 1, over do redis.call('HDEL', costs, ages[i][1]) end
end
