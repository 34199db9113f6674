-- The next records of the ledger that go into one file, under a lease. Which ones they are is decided
-- once, and holds until they are trimmed: whoever writes the file writes the same.
--
-- A file has the records of one period, by the first one's time, and at most so many. It is due when
-- the period is over, or when so many are there.
-- args:  holder (random name of who writes it), lease_s, file_every_s (the period), settle_s (by
--        then a crash of the server has taken back what it may), most
--        (records of a file)
-- Keys:  ledger  ledgerfile  ledgerlease
-- Gives: {first id, last id}, or nil: nothing is due, or another one writes it
-- Sent twice: gives the same.

local function next_file()
  local first = redis.call('XRANGE', key('ledger'), '-', '+', 'COUNT', 1)[1]
  if not first then return nil end
  local period_ms = args.file_every_s * 1000
  local begun = math.floor(tonumber(string.match(first[1], '^%d+')) / period_ms) * period_ms
  local last_ms = whole(begun + period_ms - 1)
  local settled_ms = (now - args.settle_s) * 1000
  if redis.call('XLEN', key('ledger')) >= args.most then
    local last = redis.call('XRANGE', key('ledger'), '-', last_ms, 'COUNT', args.most)[args.most]
    local is_settled = last and tonumber(string.match(last[1], '^%d+')) <= settled_ms
    if is_settled then return first[1] .. ' ' .. last[1] end
  end
  if settled_ms < begun + period_ms then return nil end
  return first[1] .. ' ' .. redis.call('XREVRANGE', key('ledger'), last_ms, '-', 'COUNT', 1)[1][1]
end

local file = redis.call('GET', key('ledgerfile')) or next_file()
if not file then return nil end
local lease_ms = math.ceil(args.lease_s * 1000)
local holder = redis.call('GET', key('ledgerlease'))
if holder and holder ~= args.holder then return nil end
redis.call('SET', key('ledgerlease'), args.holder, 'PX', lease_ms)
redis.call('SET', key('ledgerfile'), file)
return {string.match(file, '^(%S+) (%S+)$')}
