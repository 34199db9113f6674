-- Ends a job: running → succeeded or, for an audition, running → paused with its snapshots kept.
-- args:  id, fence, made (sums of the outputs: see `Delivered`), is_paused,
--        draft_ttl_s (lifetime of an audition's snapshots, unlike their job's; or absent)
-- texts: outputs (JSON), usage (JSON, with the seconds of this claim)
-- Keys:  drafts, and common's
-- Gives: the time of the end, or nil if the job is no longer held
-- Sent twice: returns the first answer.

if settled(args.id, 'finish') then return ended_at(args.id) end
if not is_held(args.id, args.fence) then return nil end
local usage = cjson.decode(ARGV[3])
spend(key('job', args.id), args.fence, {usage.device_seconds, usage.compile_seconds})
redis.call('HSET', key('job', args.id), 'outputs', ARGV[2], 'usage', ARGV[3])
local state, bytes = args.is_paused and 'paused' or 'succeeded', 0
for _, output in ipairs(cjson.decode(ARGV[2])) do
  bytes = bytes + output.bytes + (output.beside_bytes or 0)
end
local drafts = args.is_paused and fields(args.id, 'snapshots')
if drafts then
  for _, draft in ipairs(cjson.decode(drafts)) do bytes = bytes + (draft.bytes or 0) end
  if args.draft_ttl_s then
    local expiry = seconds(now + args.draft_ttl_s)
    redis.call('ZADD', key('drafts'), expiry, args.id)
    redis.call('HSET', key('job', args.id), 'drafts_expire_at', expiry)
  end
end
keep(args.id, fields(args.id, 'tenant'), bytes)
end_job(args.id, state, '{}', args.made)
settle(args.id, 'finish', state)
return ended_at(args.id)
