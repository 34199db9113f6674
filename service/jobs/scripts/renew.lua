-- Extends the leases of a pool's claims.
-- args:  claims ([id, fence, what it has taken if that is known: see `spend`], …), lease_s
-- Keys:  common's
-- Gives: which of them, 1, 2, …, are no longer held (lost, canceled, expired)
-- Sent twice: the lease is a little longer.

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
