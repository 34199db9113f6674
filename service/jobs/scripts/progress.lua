-- Reports a running job's progress and stage.
-- args:  id, fence, step, steps, stage (or absent), expected_s (of the stage; or absent),
--        max_previews, spent (device-seconds of the claim: see `spend`; or absent)
-- texts: preview (data of its event; or absent)
-- Keys:  common's
-- Gives: 1, or 0 if the job is no longer held
-- Sent twice: writes no second event.

if not is_held(args.id, args.fence) then return 0 end
if args.spent then spend(key('job', args.id), args.fence, args.spent) end
if expire(args.id) then return 0 end

local here = table.concat({args.fence, args.step, args.steps}, ' ')
local told, shown, before = fields(args.id, 'told', 'shown', 'detail')
local stage = before and cjson.decode(before).stage
if told ~= here or args.stage and args.stage ~= stage then
  local detail = args.stage and {stage = args.stage, expected_s = args.expected_s}
  redis.call('HSET', key('job', args.id), 'step', args.step, 'steps', args.steps, 'told', here)
  local data = {step = args.step, steps = args.steps, detail = detail or nil}
  emit(args.id, 'progress', cjson.encode(data))
  if detail and detail.stage ~= stage then
    detail.since = now
    redis.call('HSET', key('job', args.id), 'detail', cjson.encode(detail))
  end
end
if ARGV[2] and shown ~= here then
  redis.call('HSET', key('job', args.id), 'shown', here)
  append(key('previews', args.id), args.max_previews, args.id, 'preview', ARGV[2])
end
return 1
