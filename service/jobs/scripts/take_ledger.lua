-- Acquires the next records of the ledger that go into one file, under a lease. The range is
-- decided once and stays until it is trimmed, so every writer writes the same file.
--
-- A file has records of one period, by the time of the first, up to a maximum number. It is due
-- when the period is over, or when this number is reached.
-- args:  holder (random name of the writer), lease_s, file_every_s (the period), settle_s (time
--        after which a server crash no longer reverts records), most (maximum number of records of
--        a file)
-- Keys:  ledger  ledgerfile  ledgerlease
-- Gives: {first id, last id}, or nil: no file is due, or another front end writes it
-- Sent twice: returns the same.

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
