-- Renews the leases of a worker's claims.
-- args:  claims ([id, fence, its device-seconds if known: see `spend`], …), lease_s
-- Keys:  common's
-- Gives: the positions, from 1, of claims that are no longer held (lost, canceled, expired)
-- Sent twice: the leases are slightly longer.

local lost = {}
for i, claim in ipairs(args.claims) do
  local id, fence, spent = claim[1], claim[2], claim[3]
  if is_held(id, fence) and spent then spend(key('job', id), fence, spent) end
  if is_held(id, fence) and not expire(id) then
    redis.call('ZADD', key('leases'), seconds(now + args.lease_s), id)
  else
    lost[#lost + 1] = i
  end
end
return lost
