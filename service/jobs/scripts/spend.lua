-- Tells what a claim has taken, also of one that is over: its job may have ended, be waiting or run
-- elsewhere by now, while what it made its pool compile goes on.
-- args:  id, fence, spent (see `spend`)
-- Keys:  left:id and common's
-- Gives: 1, or 0 where nothing is known of the job any more
-- Sent twice: the second adds nothing.

local account = account_of(args.id)
local state = redis.call('HGET', account, 'state')
if not state then return 0 end
local more = spend(account, args.fence, args.spent)
if is_ended(state) then
  charge_late(account, more)
  record_late(account, args.id, args.fence, more)
end
return 1
