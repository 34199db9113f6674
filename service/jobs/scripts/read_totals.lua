-- What the ledger sums up to, and how much of it is not in the store yet.
-- Keys:  totals  ledger
-- Gives: {[name, sum, …], records that wait, age of the oldest in seconds}

local first = redis.call('XRANGE', key('ledger'), '-', '+', 'COUNT', 1)[1]
local age = first and now - tonumber(string.match(first[1], '^%d+')) / 1000 or 0
return {redis.call('HGETALL', key('totals')), redis.call('XLEN', key('ledger')),
  seconds(math.max(0, age))}
