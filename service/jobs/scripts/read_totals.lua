-- Reads the sums of the ledger, and how many records are not in the store yet.
-- Keys:  totals  ledger
-- Gives: {{name, sum, …}, number of pending records, age of the oldest in seconds}

local first = redis.call('XRANGE', key('ledger'), '-', '+', 'COUNT', 1)[1]
local age = first and now - tonumber(string.match(first[1], '^%d+')) / 1000 or 0
return {redis.call('HGETALL', key('totals')), redis.call('XLEN', key('ledger')),
  seconds(math.max(0, age))}
