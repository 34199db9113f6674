-- Records the device-seconds of a claim, even of one that is over. Its job may have ended, be
-- queued or run elsewhere by now, while compilations that it caused continue.
-- args:  id, fence, spent (see `spend`)
-- Keys:  left:id and common's
-- Gives: 1, or 0 if the job is unknown
-- Sent twice: the second call adds nothing.

local account = account_of(args.id)
local state = redis.call('HGET', account, 'state')
if not state then return 0 end
local more = spend(account, args.fence, args.spent)
if is_ended(state) then
  charge_late(account, more)
  record_late(account, args.id, args.fence, more)
end
return 1
