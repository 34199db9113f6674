-- Replaces the snapshots of a running job's images.
-- args:  id, fence
-- texts: snapshots (JSON)
-- Keys:  trash and common's
-- Gives: 1, or 0 if the job is no longer held
-- Sent twice: stores the same.

if not is_held(args.id, args.fence) or expire(args.id) then return 0 end

local kept, used = 0, {}
for _, snapshot in ipairs(cjson.decode(ARGV[2])) do
  kept = kept + snapshot.step
  if snapshot.key then used[snapshot.key] = true end
end
local before, deaths = fields(args.id, 'snapshots', 'deaths')
for _, snapshot in ipairs(cjson.decode(before or '[]')) do
  if snapshot.key and not used[snapshot.key] then
    redis.call('SADD', key('trash'), snapshot.key)
  end
end
redis.call('HSET', key('job', args.id), 'snapshots', ARGV[2], 'kept', kept)
-- The job got past the step of the last crash, so it did not cause the crash.
if deaths then
  local last = cjson.decode(deaths)
  if kept > last[#last].step then redis.call('HDEL', key('job', args.id), 'deaths') end
end
return 1
