-- Removes records whose file is stored.
-- args:  first (id), last (id)
-- Keys:  ledger  ledgerfile  ledgerlease
-- Gives: 1, or 0 if they were removed before
-- Sent twice: the second call changes nothing.

if redis.call('GET', key('ledgerfile')) ~= args.first .. ' ' .. args.last then return 0 end
local ms, number = string.match(args.last, '^(%d+)-(%d+)$')
redis.call('XTRIM', key('ledger'), 'MINID', '=', ms .. '-' .. whole(number + 1))
redis.call('DEL', key('ledgerfile'), key('ledgerlease'))
return 1
